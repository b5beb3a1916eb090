// The rules of docs/messages.md in JavaScript, against the vectors beside this file: node docs/vectors/check.mjs
// Needs node alone. Copy from it what an implementation of yours needs.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

const MAX_BYTES = 65_536, MAX_NESTING = 32, MAX_SPAN_MS = 315_576_000_000, LAST_MS = 253_402_300_799_999;
const FIRST_MS = -62_135_596_800_000;
const TIME = /^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)$/;

/** The id of a firing: its due time in front, a hash of its identity behind. */
export function firingId(type, tenantId, serviceCallId, generation, dueAtMs) {
  const more = type === "TimerExpired" ? "\nTimerExpired" : "";
  const hash = createHash("sha256").update(`${tenantId}\n${serviceCallId}\n${generation}\n${dueAtMs}${more}`).digest("hex");
  const time = Math.max(dueAtMs, 0).toString(16).padStart(12, "0");
  const variant = (8 | (parseInt(hash[4], 16) & 3)).toString(16);
  return `${time.slice(0, 8)}-${time.slice(8)}-7${hash.slice(0, 3)}-${variant}${hash.slice(5, 8)}-${hash.slice(8, 20)}`;
}

/** A time in milliseconds since 1970, rounded up; undefined if it is refused. */
export function parseTime(text) {
  const match = typeof text === "string" && !text.endsWith("\n") ? TIME.exec(text) : null;
  if (!match) return undefined;
  const [year, month, day, hour, minute, second] = match.slice(1, 7).map((part) => Number(part ?? 0));
  const [fraction, sign, offsetHours, offsetMinutes] = [match[7] ?? "", match[8], Number(match[9] ?? 0), Number(match[10] ?? 0)];
  if (hour > 23 || minute > 59 || second > 59 || offsetHours > 23 || offsetMinutes > 59) return undefined;
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day); // Not Date.UTC, which takes the year 99 for 1999.
  if (year < 1 || date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day) return undefined;
  const offset = (offsetHours * 60 + offsetMinutes) * 60_000 * (sign === "-" ? -1 : 1);
  const rounded = Number(fraction.slice(0, 3).padEnd(3, "0")) + (/[1-9]/.test(fraction.slice(3)) ? 1 : 0);
  const ms = date.getTime() + ((hour * 60 + minute) * 60 + second) * 1_000 + rounded - offset;
  return ms >= FIRST_MS && ms <= LAST_MS ? ms : undefined;
}

class Refused extends Error {
  constructor(reason, names) {
    super(`${reason}: ${names}`);
    Object.assign(this, { reason, names });
  }
}

function refuseUnless(holds, names, reason = "invalid") {
  if (!holds) throw new Refused(reason, names);
}

const isText = (value) => typeof value === "string";
const isWhole = (value, last) => Number.isInteger(value) && value >= 0 && value <= last;
const isTenant = (value) => isText(value) && /^[A-Za-z0-9_-]{1,64}$/.test(value);
const isShort = (value) => isText(value) && [...value].length >= 1 && [...value].length <= 255;
const isOpaque = (value) => isShort(value) && !/\p{Cc}/u.test(value);
const isUuid = (value) => isText(value) && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(value);
const isAbsent = (value) => value === undefined || value === null;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const depth = (value) =>
  typeof value === "object" && value !== null ? 1 + Math.max(0, ...Object.values(value).map(depth)) : 0;
const isWellFormed = (value) =>
  isText(value) ? !/\p{Surrogate}/u.test(value)
  : typeof value === "object" && value !== null ? Object.entries(value).flat().every(isWellFormed)
  : true;

function parse(body) {
  refuseUnless(body.length <= MAX_BYTES, "the body", "too_large");
  let value;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    throw new Refused("not_json", "the body");
  }
  refuseUnless(isWellFormed(value), "the body");
  refuseUnless(depth(value) <= MAX_NESTING, "the body");
  refuseUnless(isObject(value), "the body");
  return value;
}

/** What a command means, given its subject, its bytes and when the broker stored it (ms, rounded up). */
export function readCommand(subject, body, storedMs) {
  const [tenantId, type, ...more] = subject.replace(/^timer\.commands\./, "").split(".");
  refuseUnless(isTenant(tenantId) && type !== undefined && more.length === 0, "subject");
  refuseUnless(["ScheduleTimer", "CancelTimer"].includes(type), "subject", "unknown_type");
  const envelope = parse(body);
  refuseUnless(isUuid(envelope.id), "id");
  refuseUnless(isText(envelope.type), "type");
  refuseUnless(isTenant(envelope.tenantId), "tenantId");
  refuseUnless(isWhole(envelope.timestampMs, LAST_MS), "timestampMs");
  refuseUnless(isObject(envelope.payload), "payload");
  refuseUnless(isAbsent(envelope.correlationId) || isOpaque(envelope.correlationId), "correlationId");
  refuseUnless(["ScheduleTimer", "CancelTimer"].includes(envelope.type), "type", "unknown_type");
  refuseUnless(envelope.type === type, "type");
  refuseUnless(envelope.tenantId === tenantId, "tenantId", "tenant_mismatch");
  return readPayload(envelope, storedMs);
}

function readPayload({ type, tenantId, correlationId, payload }, storedMs) {
  const { _tag, serviceCallId, dueAt, delayMs, ifAbsent, expiresAfterMs } = payload;
  const schedules = type === "ScheduleTimer";
  refuseUnless(isTenant(payload.tenantId), "payload.tenantId");
  refuseUnless(isOpaque(serviceCallId) && !/\s/.test(serviceCallId), "payload.serviceCallId");
  if (schedules) {
    refuseUnless(isAbsent(dueAt) || parseTime(dueAt) !== undefined, "payload.dueAt");
    refuseUnless(isAbsent(delayMs) || isWhole(delayMs, MAX_SPAN_MS), "payload.delayMs");
    refuseUnless(isAbsent(ifAbsent) || typeof ifAbsent === "boolean", "payload.ifAbsent");
    refuseUnless(isAbsent(expiresAfterMs) || isWhole(expiresAfterMs, MAX_SPAN_MS), "payload.expiresAfterMs");
    refuseUnless(isAbsent(dueAt) !== isAbsent(delayMs), "payload");
  }
  refuseUnless(isAbsent(_tag) || _tag === type, "payload._tag");
  refuseUnless(payload.tenantId === tenantId, "payload.tenantId", "tenant_mismatch");
  const means = { type, tenantId, serviceCallId };
  if (schedules) means.dueAt = new Date(isAbsent(dueAt) ? storedMs + delayMs : parseTime(dueAt)).toISOString();
  if (schedules && !isAbsent(correlationId)) means.correlationId = correlationId;
  if (schedules && ifAbsent) means.ifAbsent = true;
  if (schedules && !isAbsent(expiresAfterMs)) means.expiresAfterMs = expiresAfterMs;
  return means;
}

function bodyOf(vector) {
  const body = vector.bodyBase64 ? Buffer.from(vector.bodyBase64, "base64") : Buffer.from(vector.body, "utf-8");
  return Buffer.concat([body, Buffer.alloc(Math.max(0, (vector.padTo ?? 0) - body.length), " ")]);
}

function outcome(vector) {
  try {
    return readCommand(vector.subject, bodyOf(vector), parseTime(vector.storedAt ?? "2025-06-02T07:25:00.000Z"));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { reason: error.reason, names: error.names };
  }
}

const read = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, import.meta.url), "utf-8"));
const iso = (ms) => (ms === undefined ? undefined : new Date(ms).toISOString());
const idOf = (type, { tenantId, serviceCallId, generation, dueAt }) =>
  firingId(type, tenantId, serviceCallId, generation, parseTime(dueAt));
const { ids, times, commands, events } = Object.fromEntries(["ids", "times", "commands", "events"].map((name) => [name, read(name)]));
const results = [
  ...ids.map((vector) => [vector, idOf(vector.type, vector), vector.id]),
  ...times.accepted.map((vector) => [vector, iso(parseTime(vector.sent)), vector.kept]),
  ...times.refused.map((vector) => [vector, iso(parseTime(vector.sent)), undefined]),
  ...commands.accepted.map((vector) => [vector, outcome(vector), vector.means]),
  ...commands.refused.map((vector) => [vector, outcome(vector), { reason: vector.reason, names: vector.names }]),
  ...events.map((vector) => [vector, idOf(vector.envelope.type, vector.envelope.payload), vector.envelope.id]),
];
const failed = results.filter(([, found, expected]) => !isDeepStrictEqual(found, expected));
for (const [vector, found, expected] of failed) console.error(JSON.stringify({ vector, found, expected }));
console.log(`${results.length - failed.length} of ${results.length} passed`);
process.exitCode = failed.length ? 1 : 0;
