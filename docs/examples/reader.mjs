// Reads reference records from a folder. Written from docs/reference-messages.md alone ("Reading"; the comments are its
// steps), with Node's standard library, so of the four codecs it has gzip.
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
 * `data` is a Buffer or null, a header [name, Buffer or null]; `store` is { root: "file:///…/", folder, maxBytes }.
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
  const checksum = header("checksum", /^sha256:([0-9a-f]{64})$/, "sha256: and 64 digits");
  const codec = header("compression", /^(gzip|snappy|lz4|zstd)$/, "a codec");
  if (codec && !size) malformed("compression without size");
  if (data.length < 1 || data.length > 16384) malformed("a path has 1 to 16,384 bytes");
  let uri;
  try { uri = utf8.decode(data); } catch { malformed("a path is UTF-8"); }
  const length = size && Number(size[0]); // inexact above 2^53, which is far above any limit
  if (length > store.maxBytes) fail("PayloadTooLargeError", `${size[0]} bytes`); // 5
  const [topic, id, ...more] = uri.startsWith(store.root) ? uri.slice(store.root.length).split("/") : []; // 6
  const legal = (name) => /^[a-zA-Z0-9._-]{1,249}$/.test(name ?? "") && name !== "." && name !== "..";
  if (!legal(topic) || !legal(id) || more.length) fail("ReferenceRefusedError", "not below the root");
  let value = fetch(path.join(store.folder, topic, id), length ?? Infinity, store.maxBytes); // 7
  if (codec) {
    try { value = codecs[codec[0]](value, length); } catch (error) { corrupt(error.message); } // 8
  }
  if (size && value.length !== length) corrupt(`size ${value.length}`); // 9
  const found = crypto.createHash("sha256").update(value).digest("hex");
  if (checksum && found !== checksum[1]) corrupt(`checksum ${found}`);
  const taken = new Set([at, ...Object.values(ours)]); // 10
  return { data: value, headers: headers.filter((_, i) => !taken.has(i)) };
}

/** Positions of size, checksum, compression and signature, each where it is present. */
function details(headers, at, flag) {
  const suffix = (i) => headers[i][0].match(/\.(size|checksum|compression|signature)$/)?.[1];
  const known = (i) => suffix(i) !== undefined && headers[i][0] === `${flag}.${suffix(i)}`;
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
