// Writes wrapper.json: message wrappers, from KIP-82 and docs/wrapper-format.md alone; nothing of this project is called.
//
//     java tests/vectors/Wrapper.java > tests/vectors/wrapper.json      (Java 17, no libraries)
//
// Sound ones are written with java.io.DataOutputStream, field by field, and read back with `read` below. Malformed ones
// are written down, and `read` must refuse them. So the file says nothing that two ways of doing it do not agree on.

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;

import static java.nio.charset.StandardCharsets.UTF_8;

public class Wrapper {
    record Content(Map<Integer, byte[]> headers, byte[] value) {}

    static final List<String> CASES = new ArrayList<>();
    static final List<String> RECORDS = new ArrayList<>();

    static byte[] write(Content content) throws IOException {
        var headers = new ByteArrayOutputStream();
        var out = new DataOutputStream(headers);
        for (var header : content.headers.entrySet()) {
            out.writeInt(header.getKey());
            out.writeInt(header.getValue().length);
            out.write(header.getValue());
        }
        var whole = new ByteArrayOutputStream();
        out = new DataOutputStream(whole);
        out.writeByte(0);
        out.writeInt(headers.size());
        headers.writeTo(out);
        if (content.value == null) {
            out.writeInt(-1);
        } else {
            out.writeInt(content.value.length);
            out.write(content.value);
        }
        return whole.toByteArray();
    }

    /** What the bytes hold; null where they are malformed. */
    static Content read(byte[] bytes) {
        try {
            var in = ByteBuffer.wrap(bytes);
            if (in.get() != 0) return null;
            int length = in.getInt();
            if (length < 0 || length > in.remaining()) return null;
            var headers = in.slice(in.position(), length);
            in.position(in.position() + length);
            var found = new LinkedHashMap<Integer, byte[]>();
            while (headers.hasRemaining()) {
                int key = headers.getInt();
                int size = headers.getInt();
                if (size < 0 || size > headers.remaining()) return null;
                var value = new byte[size];
                headers.get(value);
                if (found.put(key, value) != null || found.size() > 65_536) return null;
            }
            int size = in.getInt();
            if (size == -1) return in.hasRemaining() ? null : new Content(found, null);
            if (size != in.remaining()) return null;
            var value = new byte[size];
            in.get(value);
            return new Content(found, value);
        } catch (java.nio.BufferUnderflowException exc) {
            return null;
        }
    }

    static Map<Integer, byte[]> headers(Object... pairs) {
        var headers = new LinkedHashMap<Integer, byte[]>();
        for (int i = 0; i < pairs.length; i += 2) headers.put((Integer) pairs[i], text(pairs[i + 1]));
        return headers;
    }

    static byte[] text(Object it) {
        return it == null ? null : it instanceof byte[] bytes ? bytes : it.toString().getBytes(UTF_8);
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "null" : '"' + HexFormat.of().formatHex(bytes) + '"';
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    static void sound(String name, String about, Map<Integer, byte[]> headers, Object value) throws IOException {
        var bytes = write(new Content(headers, text(value)));
        var again = read(bytes);
        if (again == null || !java.util.Arrays.equals(write(again), bytes)) throw new AssertionError(name);
        var pairs = new StringJoiner(", ", "[", "]");
        headers.forEach((key, data) -> pairs.add("[" + key + ", " + hex(data) + "]"));
        CASES.add("  {\"name\": " + quoted(name) + ", \"about\": " + quoted(about) + ",\n   \"bytes\": " + hex(bytes)
            + ",\n   \"headers\": " + pairs + ", \"value\": " + hex(text(value)) + "}");
    }

    static void malformed(String name, String about, String bytes) {
        var found = HexFormat.of().parseHex(bytes.replace(" ", ""));
        if (read(found) != null) throw new AssertionError(name);
        CASES.add("  {\"name\": " + quoted(name) + ", \"about\": " + quoted(about) + ",\n   \"bytes\": " + hex(found)
            + ",\n   \"error\": \"MalformedWrapperError\"}");
    }

    /** A record and its wrapper, with `trace-id` for 3000001; `pairs` are name, key, value. */
    static void record(String name, String about, Object value, Object... pairs) throws IOException {
        var named = new StringJoiner(", ", "[", "]");
        var numbered = new LinkedHashMap<Integer, byte[]>();
        for (int i = 0; i < pairs.length; i += 3) {
            named.add("[" + quoted((String) pairs[i]) + ", " + hex(text(pairs[i + 2])) + "]");
            numbered.put((Integer) pairs[i + 1], text(pairs[i + 2]));
        }
        RECORDS.add("  {\"name\": " + quoted(name) + ", \"about\": " + quoted(about) + ",\n   \"headers\": " + named
            + ", \"value\": " + hex(text(value)) + ",\n   \"wrapped\": "
            + hex(write(new Content(numbered, text(value)))) + "}");
    }

    static void unfit(String name, String about, String pairs) {
        RECORDS.add("  {\"name\": " + quoted(name) + ", \"about\": " + quoted(about) + ",\n   \"headers\": " + pairs
            + ", \"value\": \"76\",\n   \"error\": \"WrapError\"}");
    }

    public static void main(String[] args) throws IOException {
        sound("no headers", "the shortest with a value", headers(), "v");
        sound("empty value", "an empty value is no tombstone", headers(), "");
        sound("tombstone", "a ValueLength of -1 is a null value", headers(), null);
        sound("one header", "the fields in their order", headers(1, "a"), "v");
        sound("tombstone with a header", "who deleted it can still be told", headers(3_000_001, "me"), null);
        sound("empty header", "a header's value may be empty", headers(5, ""), "v");
        sound("order", "headers stand in the order in which they were put", headers(9, "i", 2, "b", 5, "e"), "v");
        sound("extreme keys", "any int32 is a key", headers(Integer.MIN_VALUE, "l", -1, "m", 0, "z", Integer.MAX_VALUE, "h"), "v");
        sound("ranges", "the first and the last key of each range", headers(0, "", 999_999, "", 1_000_000, "", 1_999_999,
            "", 2_000_000, "", 2_999_999, "", 3_000_000, ""), "");
        sound("255 and 256", "lengths at a boundary of their bytes", headers(1, "x".repeat(255), 2, "y".repeat(256)), "z".repeat(256));
        sound("a wrapper in a wrapper", "a value may be anything", headers(1, "outer"),
            write(new Content(headers(1, "inner"), text("v"))));

        malformed("empty", "no bytes", "");
        malformed("short", "a byte is missing", "00 00000000 000000");
        malformed("magic 1", "another version", "01 00000000 00000000");
        malformed("magic -1", "int8 is signed", "ff 00000000 00000000");
        malformed("negative HeadersLength", "", "00 ffffffff 00000000");
        malformed("long HeadersLength", "one more than there is before ValueLength", "00 00000001 00000000");
        malformed("greatest HeadersLength", "nothing may be allocated for it", "00 7fffffff 00000000");
        malformed("Headers too short for a key", "", "00 00000007 00000001 000000 00000000");
        malformed("negative ValueLength of a header", "a header has no null", "00 00000008 00000001 ffffffff 00000000");
        malformed("header beyond Headers", "it would take from ValueLength", "00 00000009 00000001 00000002 61 00000000");
        malformed("greatest ValueLength of a header", "", "00 00000008 00000001 7fffffff 00000000");
        malformed("key twice", "with equal values too", "00 00000012 00000001 00000001 61 00000001 00000001 61 00000000");
        malformed("bytes behind the last header", "", "00 0000000c 00000001 00000001 61 000000 00000000");
        malformed("ValueLength -2", "only -1 is a null value", "00 00000000 fffffffe");
        malformed("short value", "", "00 00000000 00000002 76");
        malformed("greatest ValueLength", "", "00 00000000 7fffffff 76");
        malformed("trailing byte", "behind the value", "00 00000000 00000001 76 00");
        malformed("trailing byte behind a null value", "", "00 00000000 ffffffff 00");
        malformed("Confluent's Avro", "its magic byte is 0 too, and a schema's id follows", "00 00000007 0a68656c6c6f0a776f726c64");

        record("mapped", "a key of the table is its name", "v", "trace-id", 3_000_001, "t");
        record("unmapped", "any other is wrapper.header. and the number", "v", "wrapper.header.7", 7, "a",
            "wrapper.header.-5", -5, "b", "wrapper.header.0", 0, "c");
        record("order", "headers keep their order", "v", "wrapper.header.9", 9, "i", "trace-id", 3_000_001, "t");
        record("tombstone", "a null value, with its headers", null, "trace-id", 3_000_001, "t");
        record("reference", "a reference, by the keys that every table has", "s3://bucket/orders/id",
            "large-message", 2_082_000, "true", "large-message.size", 2_082_001, "7",
            "large-message.checksum", 2_082_002, "sha256:" + "0".repeat(64), "large-message.compression", 2_082_003, "zstd");
        record("key's reference", "", "v", "large-message-key", 2_082_010, "true", "large-message-key.size", 2_082_011, "7",
            "large-message-key.checksum", 2_082_012, "sha256:" + "0".repeat(64),
            "large-message-key.compression", 2_082_013, "zstd");
        record("chunk", "", "v", "large-message.chunk.uuid", 2_082_020, "u", "large-message.chunk.id", 2_082_021, "0",
            "large-message.chunk.count", 2_082_022, "1", "large-message.chunk.size", 2_082_023, "1",
            "large-message.chunk.checksum", 2_082_024, "sha256:" + "0".repeat(64));
        record("bakdata", "", "s3://bucket/id", "__large.message.backed.value", 2_082_030, "\1",
            "__large.message.backed.key", 2_082_031, "\0", "__large.message.backed..compression", 2_082_032, "\4",
            "__large.message.backed.compression", 2_082_033, "\4");
        unfit("no key", "no int key has this name", "[[\"other\", \"61\"]]");
        unfit("number with a name", "3000001 is trace-id; under this name it would come back as that",
            "[[\"wrapper.header.3000001\", \"61\"]]");
        unfit("leading zero", "one number has one name", "[[\"wrapper.header.07\", \"61\"]]");
        unfit("beyond int32", "", "[[\"wrapper.header.2147483648\", \"61\"]]");
        unfit("null", "a header's value is never null", "[[\"trace-id\", null]]");
        unfit("twice", "a key stands once", "[[\"trace-id\", \"61\"], [\"trace-id\", \"62\"]]");

        System.out.println("{\n \"about\": \"written by Wrapper.java; bytes are hexadecimal; see docs/wrapper-format.md\",\n"
            + " \"table\": {\"3000001\": \"trace-id\"},\n \"wrappers\": [\n" + String.join(",\n", CASES)
            + "\n ],\n \"records\": [\n" + String.join(",\n", RECORDS) + "\n ]\n}");
    }
}
