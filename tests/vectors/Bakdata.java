import com.bakdata.kafka.LargeMessageDeserializer;
import com.bakdata.kafka.LargeMessageSerializer;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;

/**
 * bakdata's own serializer and deserializer, run by hand against a real S3 server: it wrote bakdata.json, and has read
 * what transforms/bakdata.py writes.
 *
 * <p>The jars are those of com.bakdata.kafka:large-message-serde with all that it depends on, as Ivy fetches them, and of
 * org.apache.kafka:kafka-clients:3.8.1, which 3.0.0 leaves to the user. Java 17 runs this file as it is:
 *
 * <pre>
 * java -cp 'JARS/*' Bakdata.java write URL ACCESS SECRET BUCKET VERSION   prints the cases that this version writes
 * java -cp 'JARS/*' Bakdata.java read URL ACCESS SECRET FILE              prints what it makes of the values in FILE
 * </pre>
 *
 * <p>A line of FILE has key, value and headers ({@code name=base64,…}) between tabs, in base64 or "null". Each is read
 * twice: with the default configuration, and with {@code large.message.accept.no.headers}.
 */
public class Bakdata {
    private static final String TOPIC = "orders";
    private static final Base64.Encoder BASE64 = Base64.getEncoder();
    private static final Base64.Decoder DECODER = Base64.getDecoder();

    private static Map<String, Object> config(final String[] args) {
        final Map<String, Object> config = new HashMap<>();
        config.put("large.message.s3.endpoint", args[1]);
        config.put("large.message.s3.region", "us-east-1");
        config.put("large.message.s3.access.key", args[2]);
        config.put("large.message.s3.secret.key", args[3]);
        config.put("large.message.s3.path.style.access", true);
        config.put("large.message.key.serde", Serdes.ByteArraySerde.class);
        config.put("large.message.value.serde", Serdes.ByteArraySerde.class);
        return config;
    }

    public static void main(final String[] args) throws Exception {
        if (args[0].equals("read")) {
            read(args);
            return;
        }
        final List<String> cases = new ArrayList<>();
        final String alike = "a line that is like the next one\n";
        for (final boolean headers : new boolean[]{false, true}) {
            for (final String codec : new String[]{"none", "gzip", "snappy", "lz4", "zstd"}) {
                cases.add(write(args, headers, codec, "Sha256HashIdGenerator", "k", false, alike, 20));
            }
            for (final String codec : new String[]{"gzip", "snappy", "lz4", "zstd"}) {
                cases.add(write(args, headers, codec, "Sha256HashIdGenerator", "k", false, alike, 5000));
            }
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", false, "s", 1));
            cases.add(write(args, headers, "zstd", "Sha256HashIdGenerator", "k", false, "s", 1));
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", false, "s", 99));
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", false, "s", 100));
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", false, "", 1));
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", false, null, 1));
            cases.add(write(args, headers, "none", "RandomUUIDGenerator", "k", false, alike, 20));
            cases.add(write(args, headers, "none", "MurmurHashIdGenerator", null, false, alike, 20));
            cases.add(write(args, headers, "none", "Sha256HashIdGenerator", "k", true, alike, 20));
            cases.add(write(args, headers, "gzip", "Sha256HashIdGenerator", "k".repeat(150), true, alike, 20));
            cases.add(write(args, headers, "gzip", "Sha256HashIdGenerator", "k".repeat(150), true, "s", 1));
        }
        System.out.println(String.join(",\n", cases));
    }

    private static String write(final String[] args, final boolean useHeaders, final String codec, final String ids,
            final String plainKey, final boolean keyToo, final String text, final int times) throws Exception {
        final Map<String, Object> config = config(args);
        config.put("large.message.base.path", "s3://" + args[4] + "/base/");
        config.put("large.message.max.byte.size", 100);
        config.put("large.message.use.headers", useHeaders);
        config.put("large.message.compression.type", codec);
        config.put("large.message.id.generator", "com.bakdata.kafka." + ids);
        final Headers headers = new RecordHeaders().add("trace", bytes("1"));
        final byte[] value = text == null ? null : bytes(text.repeat(times));
        byte[] key = plainKey == null ? null : bytes(plainKey);
        // A producer serializes the key first, into the same headers.
        if (keyToo) {
            key = serialize(config, true, headers, key);
        }
        final byte[] wire = serialize(config, false, headers, value);
        final LargeMessageDeserializer<byte[]> deserializer = new LargeMessageDeserializer<>();
        deserializer.configure(config, false);
        String understood;
        try {
            // It takes off the headers that it has understood.
            final byte[] found = deserializer.deserialize(TOPIC, new RecordHeaders(headers), wire);
            understood = Arrays.equals(value, found) ? "itself" : "other";
        } catch (final RuntimeException e) {
            understood = e + (e.getCause() == null ? "" : ": " + e.getCause());
        }
        System.err.printf("%s %s %s x%d: %s%n", useHeaders, codec, ids, times, understood);
        final StringBuilder json = new StringBuilder("  {\n");
        json.append("   \"source\": \"large-message-serde ").append(args[5]).append("\",\n");
        json.append("   \"format\": \"").append(useHeaders ? "bakdata-headers" : "bakdata-flag").append("\",\n");
        json.append("   \"compression\": \"").append(codec).append("\",\n");
        json.append("   \"key\": ").append(base64(key)).append(",\n");
        json.append("   \"plain\": ").append(text == null ? "null"
                : "{\"text\": \"" + text.replace("\n", "\\n") + "\", \"times\": " + times + "}").append(",\n");
        json.append("   \"value\": ").append(base64(wire)).append(",\n   \"headers\": [");
        String comma = "";
        for (final var header : headers) {
            json.append(comma).append("[\"").append(header.key()).append("\", ").append(base64(header.value())).append("]");
            comma = ", ";
        }
        return json.append("],\n   \"stored\": ").append(stored(args, useHeaders, wire)).append("\n  }").toString();
    }

    private static byte[] serialize(final Map<String, Object> config, final boolean isKey, final Headers headers,
            final byte[] data) {
        try (LargeMessageSerializer<byte[]> serializer = new LargeMessageSerializer<>()) {
            serializer.configure(config, isKey);
            return serializer.serialize(TOPIC, headers, data);
        }
    }

    /** The object of a value that is backed; the zeros at its end are counted. */
    private static String stored(final String[] args, final boolean useHeaders, final byte[] wire) {
        final String path = wire == null ? "" : new String(wire, useHeaders ? 0 : 1,
                wire.length - (useHeaders || wire.length == 0 ? 0 : 1), StandardCharsets.UTF_8);
        if (!path.startsWith("s3://")) {
            return "null";
        }
        final URI uri = URI.create(path);
        try (S3Client client = S3Client.builder().endpointOverride(URI.create(args[1])).region(Region.US_EAST_1)
                .forcePathStyle(true).credentialsProvider(
                        StaticCredentialsProvider.create(AwsBasicCredentials.create(args[2], args[3]))).build()) {
            final byte[] data = client.getObjectAsBytes(request -> request.bucket(uri.getHost())
                    .key(uri.getPath().substring(1))).asByteArray();
            int end = data.length;
            while (end > 0 && data[end - 1] == 0) {
                end--;
            }
            return "{\"path\": \"" + path + "\", \"data\": " + base64(Arrays.copyOf(data, end))
                    + ", \"zeros\": " + (data.length - end) + "}";
        }
    }

    private static void read(final String[] args) throws Exception {
        for (final String accept : new String[]{"false", "true"}) {
            final Map<String, Object> config = config(args);
            config.put("large.message.accept.no.headers", accept);
            final LargeMessageDeserializer<byte[]> deserializer = new LargeMessageDeserializer<>();
            deserializer.configure(config, false);
            for (final String line : Files.readAllLines(Path.of(args[4]))) {
                final String[] fields = line.split("\t", -1);
                final Headers headers = new RecordHeaders();
                for (final String header : fields[2].split(",")) {
                    if (!header.isEmpty()) {
                        final int at = header.indexOf('=');
                        headers.add(header.substring(0, at), decoded(header.substring(at + 1)));
                    }
                }
                String result;
                try {
                    final byte[] value = deserializer.deserialize(TOPIC, headers, decoded(fields[1]));
                    result = value == null ? "null" : BASE64.encodeToString(value);
                } catch (final RuntimeException e) {
                    result = "! " + e + (e.getCause() == null ? "" : ": " + e.getCause());
                }
                System.out.println((accept.equals("true") ? "accept.no.headers\t" : "default\t") + result);
            }
        }
    }

    private static byte[] bytes(final String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] decoded(final String text) {
        return text.equals("null") ? null : DECODER.decode(text);
    }

    private static String base64(final byte[] data) {
        return data == null ? "null" : "\"" + BASE64.encodeToString(data) + "\"";
    }
}
