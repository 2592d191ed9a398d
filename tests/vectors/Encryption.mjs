// node Encryption.mjs > encryption.json: makes the vectors of encrypted payloads from what the page says ("Encryption"),
// with Node's crypto and nothing of this project. Secrets are literal, so each run gives the same file.
import crypto from "node:crypto";

const hex = (text) => Buffer.from(text, "hex");
const counted = (from, n) => Buffer.from(Array.from({ length: n }, (_, i) => (from + i) & 255));
const framed = (...said) => Buffer.concat(said.flatMap((it) => {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(Buffer.byteLength(it));
  return [length, Buffer.from(it)];
}));
const gcm = (key, nonce, aad, data) => {
  const cipher = crypto.createCipheriv("aes-256-gcm", key, nonce).setAAD(aad);
  return Buffer.concat([cipher.update(data), cipher.final(), cipher.getAuthTag()]);
};
const sha256 = (data) => crypto.createHash("sha256").update(data).digest("hex");
const shown = (data) => ({ base64: data.toString("base64") });

const KEYS = { "orders-1": "11".repeat(32), "orders-2": "22".repeat(32) };
const NO = Buffer.alloc(0);
const HELLO = "hello world hello";

/** A case: `written` is what the writer meant, `wire` and `stored` may change it afterwards. */
function made(name, about, { seed = 0, value = HELLO, packed, codec = "", id = "orders-1", key, own = [], size, tampered, change = (it) => it, error, keys, part = "value", stored: other, path: elsewhere } = {}) {
  const dataKey = counted(seed, 32), nonce = counted(seed + 32, 12), salt = counted(seed + 44, 32);
  const plain = typeof value === "string" ? Buffer.from(value) : Buffer.from(value.text.repeat(value.times));
  const length = String(size ?? plain.length);
  let stored = gcm(dataKey, nonce, framed("wideload payload 1", length, codec), packed ?? plain);
  if (tampered) stored = tampered(stored); // before the reference is made
  const checksum = sha256(stored);
  const path = `file:///payloads/orders/${checksum}`;
  const wrapping = crypto.createHmac("sha256", hex(key ?? KEYS[id])).update(framed("wideload data key 1", salt)).digest();
  const aad = framed("wideload data key 1", path, length, checksum, codec, id, nonce, NO);
  const wrapped = Buffer.concat([salt, gcm(wrapping, Buffer.alloc(12), aad, dataKey)]).toString("hex");
  const flag = part === "key" ? "large-message-key" : "large-message";
  const headers = [
    [flag, "true"],
    [`${flag}.size`, length],
    [`${flag}.checksum`, `sha256-stored:${checksum}`],
    ...(codec ? [[`${flag}.compression`, codec]] : []),
    [`${flag}.encryption`, "aes-256-gcm"],
    [`${flag}.encryption.key`, id],
    [`${flag}.encryption.nonce`, nonce.toString("hex")],
    [`${flag}.encryption.data-key`, wrapped],
  ];
  const record = { key: "k", value: elsewhere ?? path, headers: [...own, ...change(headers)] };
  if (part === "key") [record.key, record.value] = [record.value, "v"];
  return {
    name, about, part, ...(keys && { keys }),
    ...(error ? { error } : { plain: { key: "k", value, headers: own } }),
    payload: { path: elsewhere ?? path, bytes: shown(other ?? stored) }, wire: record,
  };
}

const set = (name, value) => (headers) => headers.map(([it, old]) => [it, it === name ? value(old) : old]);
const without = (...names) => (headers) => headers.filter(([name]) => !names.includes(name));
const flipped = (text) => (text.startsWith("0") ? "1" : "0") + text.slice(1);
const E = "large-message.encryption", PARTS = [E, `${E}.key`, `${E}.nonce`, `${E}.data-key`];
const MALFORMED = "MalformedReferenceError", KEY = "EncryptionError", CORRUPT = "PayloadCorruptError";
const GZIP = Buffer.from("H4sIAAAAAAACA8tIzcnJVyjPL8pJUcgYZY+yqcQGAA0urSVYAgAA", "base64");
const first = made("", "");
const second = made("", "", { seed: 100 });
const bytesOf = (it) => Buffer.from(it.payload.bytes.base64, "base64");
const changed = Buffer.from(bytesOf(first)); changed[3] ^= 1;
const dataKeyOf = (it) => it.wire.headers.at(-1)[1];

const cases = [
  made("encrypted", "A data key of its own, wrapped by a key of the reader's.", { own: [["trace", "1"]] }),
  made("encrypted: published again", "The same value with another data key is another object; both are read.", { seed: 100 }),
  made("encrypted: previous key", "The record says which key it was.", { id: "orders-2" }),
  made("encrypted: compressed", "Compressed first, then encrypted. Size is that of the value, checksum that of the stored bytes.",
    { value: { text: "hello world ", times: 50 }, packed: GZIP, codec: "gzip" }),
  made("encrypted: offloaded twice", "A reference in a value that was offloaded again is the record's own.",
    { own: [["large-message", "true"], ["large-message.size", "17"], [E, "aes-256-gcm"]] }),
  made("encrypted: no key", "A reader without a key must not return what is stored.", { keys: {}, error: KEY }),
  made("encrypted: unknown key", "The reader has other keys.", { id: "orders-3", key: "33".repeat(32), error: KEY }),
  made("encrypted: wrong key", "The reader has another key of this name.", { key: "33".repeat(32), error: KEY }),
  made("encrypted: another path", "The same object elsewhere: the data key is bound to the path.", { path: `file:///payloads/orders/${"0".repeat(64)}`, error: KEY }),
  made("encrypted: another size", "", { change: set("large-message.size", () => "18"), error: KEY }),
  made("encrypted: another checksum", "", { change: set("large-message.checksum", () => `sha256-stored:${"0".repeat(64)}`), error: KEY }),
  made("encrypted: compression added", "", { change: (it) => [...it, ["large-message.compression", "gzip"]], error: KEY }),
  made("encrypted: another nonce", "", { change: set(`${E}.nonce`, flipped), error: KEY }),
  made("encrypted: changed data key", "", { change: set(`${E}.data-key`, flipped), error: KEY }),
  made("encrypted: data key of another record", "", { change: set(`${E}.data-key`, () => dataKeyOf(second)), error: KEY }),
  made("encrypted: more bytes behind the data key", "A key of the configuration has no token.", { change: set(`${E}.data-key`, (it) => `${it}00`), error: KEY }),
  made("encrypted: changed byte", "One bit of the stored bytes.", { stored: changed, error: CORRUPT }),
  made("encrypted: payload of another record", "It is as long, and encrypted with the same master key.", { stored: bytesOf(second), error: CORRUPT }),
  made("encrypted: a byte more", "", { stored: Buffer.concat([bytesOf(first), Buffer.from([0])]), error: CORRUPT }),
  made("encrypted: a byte less", "", { stored: bytesOf(first).subarray(0, -1), error: CORRUPT }),
  made("encrypted: not encrypted so", "All checks of the reference pass, and the tag is wrong.",
    { tampered: (it) => { it[0] ^= 1; return it; }, error: CORRUPT }),
  made("encrypted: too large", "The limit is that of the value; the tag does not count.", { size: 1001, error: "PayloadTooLargeError" }),
  made("malformed: another cipher", "", { change: set(E, () => "aes-128-gcm"), error: MALFORMED }),
  ...PARTS.map((name) => made(`malformed: no ${name}`, "All four, or none.", { change: without(name), error: MALFORMED })),
  made("malformed: encrypted, no size", "", { change: without("large-message.size"), error: MALFORMED }),
  made("malformed: encrypted, no checksum", "", { change: without("large-message.checksum"), error: MALFORMED }),
  made("malformed: encrypted, checksum of the value", "It would tell which values are equal.",
    { change: set("large-message.checksum", () => `sha256:${sha256(HELLO)}`), error: MALFORMED }),
  made("malformed: encryption taken off", "Readers that know no encryption refuse this checksum, too.", { change: without(...PARTS), error: MALFORMED }),
  made("malformed: nonce in capitals", "", { seed: 10, change: set(`${E}.nonce`, (it) => it.toUpperCase()), error: MALFORMED }),
  made("malformed: short data key", "", { change: set(`${E}.data-key`, (it) => it.slice(2)), error: MALFORMED }),
  made("malformed: long data key", "", { change: set(`${E}.data-key`, (it) => it + "00".repeat(6193)), error: MALFORMED }),
  made("malformed: key with a space", "", { change: set(`${E}.key`, () => "orders 1"), error: MALFORMED }),
  made("malformed: encrypted key", "Equal keys need equal references, so keys are never encrypted.", { part: "key", error: MALFORMED }),
];

console.log(JSON.stringify({
  defaults: { root: "file:///payloads/", topic: "orders", threshold: 16, compression: "none", max_bytes: 1000, keys: KEYS },
  cases,
}, null, 1));
