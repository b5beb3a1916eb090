// The rules of docs/messages.md in Java, against the vectors beside this file: java docs/vectors/Check.java
// Needs a JDK alone, 17 or newer. Copy from it what an implementation of yours needs.
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Check {
  static final int MAX_BYTES = 65_536, MAX_NESTING = 32;
  static final long MAX_SPAN_MS = 315_576_000_000L, FIRST_MS = -62_135_596_800_000L, LAST_MS = 253_402_300_799_999L;
  static final Set<String> TYPES = Set.of("ScheduleTimer", "CancelTimer");
  static final Pattern TIME = Pattern.compile(
      "(\\d{4})-(\\d\\d)-(\\d\\d)[Tt](\\d\\d):(\\d\\d)(?::(\\d\\d)(?:[.,](\\d+))?)?(?:[Zz]|([+-])(\\d\\d)(?::?(\\d\\d))?)");
  static final DateTimeFormatter ISO = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);

  /** The id of a firing: its due time in front, a hash of its identity behind. */
  static String firingId(String type, String tenantId, String serviceCallId, long generation, long dueAtMs) throws Exception {
    String more = type.equals("TimerExpired") ? "\nTimerExpired" : "";
    String identity = tenantId + "\n" + serviceCallId + "\n" + generation + "\n" + dueAtMs + more;
    byte[] digest = MessageDigest.getInstance("SHA-256").digest(identity.getBytes(StandardCharsets.UTF_8));
    String hash = HexFormat.of().formatHex(digest), time = String.format("%012x", Math.max(dueAtMs, 0));
    String variant = Integer.toHexString(8 | Character.digit(hash.charAt(4), 16) & 3);
    return time.substring(0, 8) + "-" + time.substring(8) + "-7" + hash.substring(0, 3) + "-" + variant
        + hash.substring(5, 8) + "-" + hash.substring(8, 20);
  }

  /** A time in milliseconds since 1970, rounded up; null if it is refused. */
  static Long parseTime(Object value) {
    Matcher match = TIME.matcher(value instanceof String text ? text : "");
    if (!match.matches()) return null;
    long[] part = new long[11];
    for (int group : new int[] {1, 2, 3, 4, 5, 6, 9, 10}) part[group] = match.group(group) == null ? 0 : Long.parseLong(match.group(group));
    if (part[4] > 23 || part[5] > 59 || part[6] > 59 || part[9] > 23 || part[10] > 59 || part[1] < 1) return null;
    LocalDate date;
    try {
      date = LocalDate.of((int) part[1], (int) part[2], (int) part[3]);
    } catch (DateTimeException error) {
      return null;
    }
    String fraction = match.group(7) == null ? "" : match.group(7), finer = fraction.length() > 3 ? fraction.substring(3) : "";
    long rounded = Long.parseLong((fraction + "000").substring(0, 3)) + (finer.matches(".*[1-9].*") ? 1 : 0);
    long offset = (part[9] * 60 + part[10]) * 60_000 * ("-".equals(match.group(8)) ? -1 : 1);
    long ms = date.toEpochDay() * 86_400_000 + ((part[4] * 60 + part[5]) * 60 + part[6]) * 1_000 + rounded - offset;
    return ms >= FIRST_MS && ms <= LAST_MS ? ms : null;
  }

  static class Refused extends RuntimeException {
    final String reason, names;

    Refused(String reason, String names) {
      super(reason + ": " + names);
      this.reason = reason;
      this.names = names;
    }
  }

  static void refuseUnless(boolean holds, String names) {
    refuseUnless(holds, names, "invalid");
  }

  static void refuseUnless(boolean holds, String names, String reason) {
    if (!holds) throw new Refused(reason, names);
  }

  static boolean isWhole(Object value, long last) {
    return value instanceof BigDecimal number && number.scale() <= 0 && number.signum() >= 0 && number.compareTo(BigDecimal.valueOf(last)) <= 0;
  }

  static boolean isTenant(Object value) {
    return value instanceof String text && text.matches("[A-Za-z0-9_-]{1,64}");
  }

  static boolean isUuid(Object value) {
    return value instanceof String text && text.matches("(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
  }

  static boolean isOpaque(Object value) {
    if (!(value instanceof String text)) return false;
    int length = text.codePointCount(0, text.length());
    return length >= 1 && length <= 255 && text.codePoints().noneMatch(Character::isISOControl);
  }

  static boolean isServiceCall(Object value) {
    return isOpaque(value) && ((String) value).codePoints().noneMatch(point -> Character.isWhitespace(point) || Character.isSpaceChar(point));
  }

  static boolean isWellFormed(Object value) {
    if (value instanceof String text) return text.codePoints().noneMatch(point -> point >= 0xD800 && point <= 0xDFFF);
    if (value instanceof List<?> list) return list.stream().allMatch(Check::isWellFormed);
    if (value instanceof Map<?, ?> map) return map.entrySet().stream().allMatch(each -> isWellFormed(each.getKey()) && isWellFormed(each.getValue()));
    return true;
  }

  static int depth(Object value) {
    if (value instanceof Map<?, ?> map) return 1 + map.values().stream().mapToInt(Check::depth).max().orElse(0);
    return value instanceof List<?> list ? 1 + list.stream().mapToInt(Check::depth).max().orElse(0) : 0;
  }

  @SuppressWarnings("unchecked")
  static Map<String, Object> parse(byte[] body) {
    refuseUnless(body.length <= MAX_BYTES, "the body", "too_large");
    Object value;
    try {
      value = Json.read(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString());
    } catch (CharacterCodingException | IllegalArgumentException error) {
      throw new Refused("not_json", "the body");
    }
    refuseUnless(isWellFormed(value) && depth(value) <= MAX_NESTING && value instanceof Map, "the body");
    return (Map<String, Object>) value;
  }

  /** What a command means, given its subject, its bytes and when the broker stored it (ms, rounded up). */
  @SuppressWarnings("unchecked")
  static Map<String, Object> readCommand(String subject, byte[] body, long storedMs) {
    String[] tokens = subject.substring("timer.commands.".length()).split("\\.", -1);
    refuseUnless(isTenant(tokens[0]) && tokens.length == 2, "subject");
    refuseUnless(TYPES.contains(tokens[1]), "subject", "unknown_type");
    Map<String, Object> envelope = parse(body);
    refuseUnless(isUuid(envelope.get("id")), "id");
    refuseUnless(envelope.get("type") instanceof String, "type");
    refuseUnless(isTenant(envelope.get("tenantId")), "tenantId");
    refuseUnless(isWhole(envelope.get("timestampMs"), LAST_MS), "timestampMs");
    refuseUnless(envelope.get("payload") instanceof Map, "payload");
    refuseUnless(envelope.get("correlationId") == null || isOpaque(envelope.get("correlationId")), "correlationId");
    refuseUnless(TYPES.contains(envelope.get("type")), "type", "unknown_type");
    refuseUnless(envelope.get("type").equals(tokens[1]), "type");
    refuseUnless(envelope.get("tenantId").equals(tokens[0]), "tenantId", "tenant_mismatch");
    return readPayload(envelope, (Map<String, Object>) envelope.get("payload"), storedMs);
  }

  static Map<String, Object> readPayload(Map<String, Object> envelope, Map<String, Object> payload, long storedMs) {
    Object dueAt = payload.get("dueAt"), delayMs = payload.get("delayMs"), expiresAfterMs = payload.get("expiresAfterMs");
    Object ifAbsent = payload.get("ifAbsent"), tag = payload.get("_tag"), correlationId = envelope.get("correlationId");
    boolean schedules = envelope.get("type").equals("ScheduleTimer");
    refuseUnless(isTenant(payload.get("tenantId")), "payload.tenantId");
    refuseUnless(isServiceCall(payload.get("serviceCallId")), "payload.serviceCallId");
    if (schedules) {
      refuseUnless(dueAt == null || parseTime(dueAt) != null, "payload.dueAt");
      refuseUnless(delayMs == null || isWhole(delayMs, MAX_SPAN_MS), "payload.delayMs");
      refuseUnless(ifAbsent == null || ifAbsent instanceof Boolean, "payload.ifAbsent");
      refuseUnless(expiresAfterMs == null || isWhole(expiresAfterMs, MAX_SPAN_MS), "payload.expiresAfterMs");
      refuseUnless((dueAt == null) != (delayMs == null), "payload");
    }
    refuseUnless(tag == null || tag.equals(envelope.get("type")), "payload._tag");
    refuseUnless(payload.get("tenantId").equals(envelope.get("tenantId")), "payload.tenantId", "tenant_mismatch");
    Map<String, Object> means = new LinkedHashMap<>();
    for (String name : List.of("type", "tenantId")) means.put(name, envelope.get(name));
    means.put("serviceCallId", payload.get("serviceCallId"));
    if (schedules) means.put("dueAt", iso(dueAt == null ? storedMs + ((BigDecimal) delayMs).longValueExact() : parseTime(dueAt)));
    if (schedules && correlationId != null) means.put("correlationId", correlationId);
    if (schedules && Boolean.TRUE.equals(ifAbsent)) means.put("ifAbsent", true);
    if (schedules && expiresAfterMs != null) means.put("expiresAfterMs", expiresAfterMs);
    return means;
  }

  static String iso(Long ms) {
    return ms == null ? null : ISO.format(Instant.ofEpochMilli(ms));
  }

  static byte[] bodyOf(Map<String, Object> vector) {
    String base64 = (String) vector.get("bodyBase64");
    byte[] body = base64 == null ? ((String) vector.get("body")).getBytes(StandardCharsets.UTF_8) : Base64.getDecoder().decode(base64);
    int size = vector.get("padTo") instanceof BigDecimal padTo ? padTo.intValueExact() : 0;
    byte[] padded = Arrays.copyOf(body, Math.max(body.length, size));
    Arrays.fill(padded, body.length, padded.length, (byte) ' ');
    return padded;
  }

  static Object outcome(Map<String, Object> vector) {
    try {
      Object storedAt = vector.getOrDefault("storedAt", "2025-06-02T07:25:00.000Z");
      return readCommand((String) vector.get("subject"), bodyOf(vector), parseTime(storedAt));
    } catch (Refused refused) {
      return List.of(refused.reason, refused.names);
    }
  }

  static String idOf(Object type, Map<String, Object> firing) throws Exception {
    long generation = ((BigDecimal) firing.get("generation")).longValueExact(), dueAtMs = parseTime(firing.get("dueAt"));
    return firingId((String) type, (String) firing.get("tenantId"), (String) firing.get("serviceCallId"), generation, dueAtMs);
  }

  static int count = 0, passed = 0;

  static void check(Object vector, Object found, Object expected) {
    count++;
    if (Objects.equals(found, expected)) passed++;
    else System.err.println(vector + "\n  found    " + found + "\n  expected " + expected);
  }

  @SuppressWarnings("unchecked")
  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments.length > 0 ? arguments[0] : "docs/vectors");
    Map<String, Object> read = new LinkedHashMap<>();
    for (String name : List.of("ids", "times", "commands", "events")) read.put(name, Json.read(Files.readString(folder.resolve(name + ".json"))));
    var times = (Map<String, List<Map<String, Object>>>) read.get("times");
    var commands = (Map<String, List<Map<String, Object>>>) read.get("commands");
    for (var vector : (List<Map<String, Object>>) read.get("ids")) check(vector, idOf(vector.get("type"), vector), vector.get("id"));
    for (var vector : times.get("accepted")) check(vector, iso(parseTime(vector.get("sent"))), vector.get("kept"));
    for (var vector : times.get("refused")) check(vector, parseTime(vector.get("sent")), null);
    for (var vector : commands.get("accepted")) check(vector, outcome(vector), vector.get("means"));
    for (var vector : commands.get("refused")) check(vector, outcome(vector), List.of(vector.get("reason"), vector.get("names")));
    for (var vector : (List<Map<String, Object>>) read.get("events")) {
      var envelope = (Map<String, Object>) vector.get("envelope");
      check(vector, idOf(envelope.get("type"), (Map<String, Object>) envelope.get("payload")), envelope.get("id"));
    }
    System.out.println(passed + " of " + count + " passed");
    System.exit(passed == count ? 0 : 1);
  }

  /** Strict JSON, which the JDK does not have; numbers are BigDecimal. Take your own library's in its place. */
  static class Json {
    static final Pattern TOKEN = Pattern.compile(
        "[ \\t\\n\\r]*(?:([\\[\\]{},:]|true|false|null)|(-?(?:0|[1-9]\\d*)(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)"
            + "|\"([^\"\\\\\\x00-\\x1f]*+(?:\\\\(?:[\"\\\\/bfnrt]|u[0-9a-fA-F]{4})[^\"\\\\\\x00-\\x1f]*+)*+)\")[ \\t\\n\\r]*");
    final Matcher tokens;
    String sign, number, text;

    Json(String source) {
      tokens = TOKEN.matcher(source);
      next();
    }

    static Object read(String source) {
      Json json = new Json(source);
      Object value = json.value();
      if (json.sign != null || json.number != null || json.text != null) throw new IllegalArgumentException("more than one value");
      return value;
    }

    void next() {
      boolean ended = tokens.regionStart() == tokens.regionEnd();
      if (!ended && !tokens.lookingAt()) throw new IllegalArgumentException("not JSON at " + tokens.regionStart());
      sign = ended ? null : tokens.group(1);
      number = ended ? null : tokens.group(2);
      text = ended ? null : tokens.group(3);
      if (!ended) tokens.region(tokens.end(), tokens.regionEnd());
    }

    boolean skip(String expected) {
      if (!expected.equals(sign)) return false;
      next();
      return true;
    }

    void need(String expected) {
      if (!skip(expected)) throw new IllegalArgumentException(expected + " is missing");
    }

    Object value() {
      if (number != null) return new BigDecimal(taken(number));
      if (text != null) return unescaped(taken(text));
      if (skip("true")) return true;
      if (skip("false")) return false;
      if (skip("null")) return null;
      if (skip("[")) return array();
      need("{");
      return object();
    }

    String taken(String token) {
      next();
      return token;
    }

    List<Object> array() {
      List<Object> values = new ArrayList<>();
      if (skip("]")) return values;
      do values.add(value()); while (skip(","));
      need("]");
      return values;
    }

    Map<String, Object> object() {
      Map<String, Object> fields = new LinkedHashMap<>();
      if (skip("}")) return fields;
      do {
        if (text == null) throw new IllegalArgumentException("a name is missing");
        String name = unescaped(taken(text));
        need(":");
        fields.put(name, value());
      } while (skip(","));
      need("}");
      return fields;
    }

    static String unescaped(String text) {
      StringBuilder plain = new StringBuilder();
      for (int at = 0; at < text.length(); at++) {
        char letter = text.charAt(at);
        if (letter == '\\') {
          letter = text.charAt(++at);
          int which = "bfnrt".indexOf(letter);
          if (which >= 0) letter = "\b\f\n\r\t".charAt(which);
          else if (letter == 'u') letter = (char) Integer.parseInt(text.substring(at + 1, (at += 4) + 1), 16);
        }
        plain.append(letter);
      }
      return plain.toString();
    }
  }
}
