// Reads reference records from a directory. Written from docs/reference-messages.md ("Reading"; the comments are its
// steps) and docs/reference-security.md alone, with Node's standard library, so of the four codecs it has gzip.
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";

const fail = (name, why) => { throw Object.assign(new Error(why), { name }); };
const malformed = (why) => fail("MalformedReferenceError", why);
const corrupt = (why) => fail("PayloadCorruptError", why);
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export const codecs = { gzip: (stored, size) => zlib.gunzipSync(stored, { maxOutputLength: Math.max(size, 1) }) };

/**
 * What stands in a record's value (or, with flag "large-message-key", its key), and the record's own headers.
 * `data` is a Buffer or null, a header [name, Buffer or null]; `store` is { root: "file:///…/", folder, maxBytes, keys },
 * where keys has those of encrypted payloads, 64 hex digits each, by id.
 */
export function read(data, headers, store, flag = "large-message") {
  const at = headers.findLastIndex(([name]) => name === flag);
  if (data === null || at < 0 || headers[at][1]?.toString("latin1") !== "true") return { data, headers }; // 1, 2
  const ours = details(headers, at, flag); // 3
  const header = (name, form, wanted) => {
    if (!(name in ours)) return undefined;
    return form.exec(headers[ours[name]][1]?.toString("latin1") ?? "null") ?? malformed(`${flag}.${name}: ${wanted}`);
  };
  const size = header("size", /^[0-9]{1,19}$/, "1 to 19 digits"); // 4
  const encrypted = flag === "large-message" && ENCRYPTION.some((name) => name in ours);
  const algorithm = encrypted ? "sha256-stored" : "sha256";
  const checksum = header("checksum", new RegExp(`^${algorithm}:([0-9a-f]{64})$`), `${algorithm}: and 64 digits`);
  const codec = header("compression", /^(gzip|snappy|lz4|zstd)$/, "a codec");
  const seal = encrypted && ENCRYPTION.map((name, i) => header(name, FORMS[i], "of its form")?.[0]);
  if (codec && !size) malformed("compression without size");
  if (encrypted && !(seal.every(Boolean) && size && checksum)) malformed("a header of encryption is missing");
  if (data.length < 1 || data.length > 16384) malformed("a path has 1 to 16,384 bytes");
  let uri;
  try { uri = utf8.decode(data); } catch { malformed("a path is UTF-8"); }
  const length = size && Number(size[0]); // inexact above 2^53, which is far above any limit
  if (length > store.maxBytes) fail("PayloadTooLargeError", `${size[0]} bytes`); // 5
  const [topic, id, ...more] = uri.startsWith(store.root) ? uri.slice(store.root.length).split("/") : []; // 6
  const legal = (name) => /^[a-zA-Z0-9._-]{1,249}$/.test(name ?? "") && name !== "." && name !== "..";
  if (!legal(topic) || !legal(id) || more.length) fail("ReferenceRefusedError", "not below the root");
  const dataKey = encrypted && unwrap(seal, uri, size[0], checksum[1], codec?.[0] ?? "", store.keys ?? {});
  const tag = encrypted ? 16 : 0;
  let value = fetch(path.join(store.folder, topic, id), (length ?? Infinity) + tag, store.maxBytes + tag); // 7
  const digest = (data) => crypto.createHash("sha256").update(data).digest("hex");
  if (encrypted) {
    if (digest(value) !== checksum[1]) corrupt(`checksum of stored bytes ${digest(value)}`);
    value = open(dataKey, Buffer.from(seal[2], "hex"), framed("wideload payload 1", size[0], codec?.[0] ?? ""), value, corrupt);
  }
  if (codec) {
    try { value = codecs[codec[0]](value, length); } catch (error) { corrupt(error.message); } // 8
  }
  if (size && value.length !== length) corrupt(`size ${value.length}`); // 9
  if (checksum && !encrypted && digest(value) !== checksum[1]) corrupt(`checksum ${digest(value)}`);
  const taken = new Set([at, ...Object.values(ours)]); // 10
  return { data: value, headers: headers.filter((_, i) => !taken.has(i)) };
}

const ENCRYPTION = ["encryption", "encryption.key", "encryption.nonce", "encryption.data-key"];
const FORMS = [/^aes-256-gcm$/, /^[a-zA-Z0-9._:/-]{1,256}$/, /^[0-9a-f]{24}$/, /^([0-9a-f]{2}){80,6272}$/];
const framed = (...said) => Buffer.concat(said.flatMap((it) => {
  const bytes = Buffer.from(it), length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return [length, bytes];
}));

/** Opens AES-256-GCM with its tag at the end; `refuse` raises the error. */
function open(key, nonce, context, sealed, refuse) {
  try {
    const cipher = crypto.createDecipheriv("aes-256-gcm", key, nonce, { authTagLength: 16 });
    cipher.setAAD(context).setAuthTag(sealed.subarray(-16));
    return Buffer.concat([cipher.update(sealed.subarray(0, -16)), cipher.final()]);
  } catch (error) { return refuse(error.message); }
}

/** The data key of an encrypted payload, which is bound to its place. */
function unwrap([, id, nonce, dataKey], uri, size, checksum, codec, keys) {
  const refuse = (why) => fail("EncryptionError", why);
  if (!Object.hasOwn(keys, id)) refuse(`no key ${id}`);
  const bytes = Buffer.from(dataKey, "hex");
  const [salt, sealed, token] = [bytes.subarray(0, 32), bytes.subarray(32, 80), bytes.subarray(80)];
  if (token.length) refuse("a key of this reader has no token");
  const key = crypto.createHmac("sha256", Buffer.from(keys[id], "hex")).update(framed("wideload data key 1", salt)).digest();
  const place = framed("wideload data key 1", uri, size, checksum, codec, id, Buffer.from(nonce, "hex"), token);
  return open(key, Buffer.alloc(12), place, sealed, refuse);
}

/** Positions of the headers that describe the payload, each where it is present. */
function details(headers, at, flag) {
  const names = ["size", "checksum", "compression", "signature", ...(flag === "large-message" ? ENCRYPTION : [])];
  const suffix = (i) => names.find((name) => headers[i][0] === `${flag}.${name}`);
  const known = (i) => suffix(i) !== undefined;
  const behind = {};
  for (let i = at + 1; i < headers.length; i++) if (known(i)) behind[suffix(i)] ??= i;
  if (Object.keys(behind).length) return behind;
  const before = {};
  let group = null; // the names directly behind an earlier flag
  for (let i = 0; i < at; i++) {
    if (headers[i][0] === flag) group = new Set();
    else if (!known(i)) group = null;
    else if (group && !group.has(suffix(i))) group.add(suffix(i));
    else { group = null; before[suffix(i)] = i; }
  }
  return before;
}

function fetch(file, length, maxBytes) {
  if (!fs.existsSync(file)) fail("PayloadNotFoundError", file);
  const stored = fs.statSync(file).size;
  if (stored > length) corrupt(`stored ${stored} bytes`);
  if (stored > maxBytes) fail("PayloadTooLargeError", `${stored} bytes`);
  return fs.readFileSync(file);
}
