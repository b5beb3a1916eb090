// Against a real service: NATS_URL, and in NATS_USER and NATS_PASSWORD a tenant's own login.
import { connect, type NatsConnection } from "@nats-io/transport-node";
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";

import { type Firing, Reject, RequestRefused, ServiceAway, Timers } from "../src/index.js";

const tenant = process.env.NATS_USER ?? "acme";
const NEW_YEAR = new Date("2100-01-01T08:00:00.000Z");
/** A tenant's permissions name its consumer; without any, each test has one of its own. */
const named = (name: string) => (process.env.NATS_USER ? "billing" : name);
let connection: NatsConnection;
let timers: Timers;

before(async () => {
  const login = process.env.NATS_USER ? { user: tenant, pass: process.env.NATS_PASSWORD ?? "" } : {};
  connection = await connect({ servers: process.env.NATS_URL ?? "localhost:4222", inboxPrefix: `_INBOX.${tenant}`, ...login });
  timers = new Timers(connection, { tenant });
});
after(() => connection.close());

/** Collect firings whose ids begin so, until there are this many. */
function collecting(begin: string, count: number) {
  const seen: Firing[] = [];
  const { promise, resolve } = withResolvers<Firing[]>();
  return {
    all: promise,
    take(firing: Firing) {
      if (!firing.serviceCallId.startsWith(begin)) return;
      seen.push(firing);
      if (seen.length === count) resolve(seen);
    },
  };
}

function withResolvers<T>() {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((done) => (resolve = done));
  return { promise, resolve };
}

test("a confirmed schedule is there, is listed, and can be cancelled", async () => {
  const { outcome, timer } = await timers.schedule("asked-1", { dueAt: NEW_YEAR, expiresAfterMs: 60_000 }, { confirm: true, correlationId: "page" });
  assert.deepEqual([outcome, timer.dueAt, timer.expiresAfterMs], ["scheduled", "2100-01-01T08:00:00.000Z", 60_000]);
  assert.deepEqual(await timers.get("asked-1"), timer);

  const again = await timers.schedule("asked-1", { delayMs: 5, ifAbsent: true }, { confirm: true });
  assert.deepEqual([again.outcome, again.timer.dueAt], ["unchanged", timer.dueAt]);
  assert.equal((await timers.cancel("asked-1", { confirm: true })).outcome, "cancelled");
  assert.equal((await timers.get("asked-1"))?.state, "Cancelled");
  assert.equal(await timers.get("asked-2"), undefined);
});

test("a list goes from page to page", async () => {
  const ids = ["paged-1", "paged-2", "paged-3", "paged-4", "paged-5"];
  for (const id of ids) await timers.schedule(id, { dueAt: NEW_YEAR }, { confirm: true, correlationId: "pages" });

  const found: string[] = [];
  for await (const timer of timers.list({ correlationId: "pages", limit: 2, dueFrom: NEW_YEAR })) found.push(timer.serviceCallId);

  assert.deepEqual(found, ids);
});

test("a command is carried out, and its firing handled with what it says", async () => {
  const due = new Date(Date.now() - 1_000);
  const found = collecting("fires-", 1);
  await timers.schedule("fires-1", { dueAt: due }, { correlationId: "request-7" });

  const consumer = await timers.consume(named("plain"), found.take);
  const [firing] = await found.all;
  await consumer.stop();

  assert.ok(firing);
  const { id, at, ...rest } = firing;
  assert.deepEqual(rest, { type: "DueTimeReached", tenantId: tenant, serviceCallId: "fires-1", dueAt: due, generation: 1, correlationId: "request-7", attempt: 1 });
  assert.ok(at >= due && id.length === 36);
});

test("a cancelled timer does not fire", async () => {
  const found = collecting("stays-", 1);
  await timers.schedule("stays-1", { delayMs: 3_600_000 });
  await timers.cancel("stays-1");
  await timers.schedule("stays-2", { delayMs: 0 });

  const consumer = await timers.consume(named("cancels"), found.take);
  const firings = await found.all;
  await consumer.stop();

  assert.deepEqual(firings.map((each) => each.serviceCallId), ["stays-2"]);
  assert.equal((await timers.get("stays-1"))?.state, "Cancelled");
});

test("a handler that fails is tried again, one that rejects is not", async () => {
  const found = collecting("tried-", 4);
  const errors: unknown[] = [];
  await timers.schedule("tried-rejected", { delayMs: 0 });
  await timers.schedule("tried-thrice", { delayMs: 0 });

  const options = { retryDelaysMs: [1], concurrency: 4, onError: (error: unknown) => errors.push(error) };
  const consumer = await timers.consume(named("tries"), (firing) => {
    found.take(firing);
    if (firing.serviceCallId === "tried-rejected") throw new Reject("never");
    if (firing.serviceCallId === "tried-thrice" && firing.attempt < 3) throw new Error("not yet");
  }, options);
  const firings = await found.all;
  await consumer.stop();

  const tries = (id: string) => firings.filter((each) => each.serviceCallId === id).map((each) => each.attempt);
  assert.deepEqual([tries("tried-rejected"), tries("tried-thrice")], [[1], [1, 2, 3]]);
  assert.deepEqual(errors.map(String).sort(), ["Error: not yet", "Error: not yet", "Reject: never"]);
});

test("a handler that is slower than the lease runs once, though another worker is free", async () => {
  const attempts: number[] = [];
  const begun = withResolvers<void>();
  const ended = withResolvers<void>();
  const handler = async (firing: Firing) => {
    if (firing.serviceCallId !== "slow-1") return;
    attempts.push(firing.attempt);
    begun.resolve();
    await delay(2_500);
    ended.resolve();
  };
  await timers.schedule("slow-1", { delayMs: 0 });

  const busy = await timers.consume(named("slow"), handler, { ackWaitMs: 1_000 });
  await begun.promise;
  const free = await timers.consume(named("slow"), handler, { concurrency: 5 });
  await ended.promise;
  await Promise.all([busy.stop(), free.stop()]);

  assert.deepEqual(attempts, [1]);
});

test("who stops leaves the rest to the others, and nothing is handled twice", async () => {
  const found = collecting("shared-", 40);
  for (let number = 0; number < 40; number++) await timers.schedule(`shared-${number}`, { delayMs: 0 });

  const stopped = withResolvers<void>();
  const first = await timers.consume(named("shared"), (firing) => {
    found.take(firing);
    if (firing.serviceCallId.startsWith("shared-")) stopped.resolve();
  }, { concurrency: 3 });
  await stopped.promise;
  await first.stop();
  const second = await timers.consume(named("shared"), found.take, { concurrency: 3 });
  const firings = await found.all;
  await second.stop();

  assert.equal(new Set(firings.map((each) => each.id)).size, 40);
});

test("wrong use is told at once, and says what is allowed", async () => {
  assert.throws(() => new Timers(connection, { tenant: "a.b" }), /1 to 64 of A-Z/);
  await assert.rejects(timers.schedule("two words", { delayMs: 1 }), /no whitespace/);
  await assert.rejects(timers.schedule("order-1", { delayMs: 0.5 }), /whole number of milliseconds/);
  await assert.rejects(timers.schedule("order-1", { dueAt: new Date(NaN) }), /must be a Date/);
  await assert.rejects(timers.schedule("order-1", {} as never), /exactly one of dueAt and delayMs/);
  await assert.rejects(timers.consume("a.b", () => {}), /name of a consumer/);
  await assert.rejects(timers.schedule("order-1", { delayMs: 1 }, { confirm: true, correlationId: "" }), (error) =>
    error instanceof RequestRefused && error.code === 400 && /correlationId: must be/.test(error.message));
});

test("where no service runs, that is said", { skip: process.env.NATS_USER ? "needs the right to other subjects" : false }, async () => {
  const nobody = new Timers(connection, { tenant, prefix: "nobody" });
  await assert.rejects(nobody.get("order-1"), ServiceAway);
  await assert.rejects(nobody.schedule("order-1", { delayMs: 1 }), ServiceAway);
});
