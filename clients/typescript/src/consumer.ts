import { AckPolicy, type ConsumerMessages, jetstream, JetStreamApiError, jetstreamManager, type JsMsg } from "@nats-io/jetstream";
import { type NatsConnection, nanos } from "@nats-io/nats-core";
import { setTimeout as delay } from "node:timers/promises";

import type { DueTimeReached, TimerExpired } from "./wire.js";

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const NO_CONSUMER = 10_014;
const LEASE_MS = 30_000;
const MAX_ACK_PENDING = 10_000;
const FETCH_MS = 5_000;
const PAUSE_MS = 1_000;
const REMEMBERED = 10_000;

/** What became of one timer, once. */
export interface Firing {
  /** The same however often it is delivered: remember it in the transaction of what you change. */
  id: string;
  type: "DueTimeReached" | "TimerExpired";
  tenantId: string;
  serviceCallId: string;
  dueAt: Date;
  /** When the service handled it. */
  at: Date;
  generation: number;
  correlationId?: string;
  /** From 1; how often the broker has delivered it. */
  attempt: number;
}

export type Handler = (firing: Firing) => Promise<void> | void;

/** Thrown by a handler for a firing that it will never be able to handle: it is not delivered again. */
export class Reject extends Error {
  override name = "Reject";
}

export interface ConsumeOptions {
  /** How many firings are handled side by side; those of one timer never are. */
  concurrency?: number;
  /** Read TimerExpired as well. */
  withExpired?: boolean;
  /** So long without a sign of life, and another worker gets the firing. Only used to create the consumer. */
  ackWaitMs?: number;
  /** How long to wait before a firing whose handler failed is tried again; the last one counts for all further tries. */
  retryDelaysMs?: readonly number[];
  /** Told of every error of a handler, and of what is not an event. */
  onError?: (error: unknown, firing?: Firing) => void;
}

interface Place {
  tenant: string;
  prefix: string;
  name: string;
}

/** Workers of the same name share the firings. Ids that were handled are remembered in memory, the last 10,000. */
export class Consumer {
  /** Fulfilled when it has stopped. */
  readonly done: Promise<void>;
  readonly #options: Required<ConsumeOptions>;
  readonly #handled = new Set<string>();
  readonly #running = new Set<Promise<void>>();
  readonly #lastOf = new Map<string, Promise<void>>();
  #fetching: ConsumerMessages | undefined;
  #stopping = false;

  private constructor(
    private readonly connection: NatsConnection,
    stream: string,
    durable: string,
    private readonly handler: Handler,
    options: Required<ConsumeOptions>,
  ) {
    this.#options = options;
    this.done = this.#run(stream, durable);
  }

  /** Find or create the durable consumer, and begin. */
  static async start(connection: NatsConnection, place: Place, handler: Handler, options: ConsumeOptions): Promise<Consumer> {
    const { concurrency = 1, withExpired = false, retryDelaysMs = [1_000, 5_000, 30_000, 300_000] } = options;
    if (!NAME.test(place.name)) throw new RangeError(`name of a consumer must be 1 to 64 of A-Z a-z 0-9 _ - (got ${place.name})`);
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new RangeError(`concurrency must be at least 1 (got ${concurrency})`);
    const stream = `${place.prefix.toUpperCase().replaceAll(".", "_")}_EVENTS`;
    const durable = `${place.tenant}-${place.name}`;
    // Without the check, which asks for more rights than a tenant has.
    const manager = await jetstreamManager(connection, { checkAPI: false });
    const config = await manager.consumers.info(stream, durable).then(
      (info) => info.config,
      async (error: unknown) => {
        if (!(error instanceof JetStreamApiError) || error.code !== NO_CONSUMER) throw error;
        const created = await manager.consumers.add(stream, {
          durable_name: durable,
          filter_subject: `${place.prefix}.events.${place.tenant}.${withExpired ? "*" : "DueTimeReached"}`,
          ack_policy: AckPolicy.Explicit,
          ack_wait: nanos(options.ackWaitMs ?? LEASE_MS),
          max_deliver: -1,
          max_ack_pending: MAX_ACK_PENDING,
        });
        return created.config;
      },
    );
    const ackWaitMs = (config.ack_wait ?? nanos(LEASE_MS)) / 1_000_000;
    const onError = options.onError ?? ((error: unknown) => console.error(error));
    return new Consumer(connection, stream, durable, handler, { concurrency, withExpired, retryDelaysMs, ackWaitMs, onError });
  }

  /** Take nothing more, give back what was not begun, and wait for the handlers that run. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#fetching?.stop();
    await this.done;
  }

  async #run(stream: string, durable: string): Promise<void> {
    while (!this.#stopping && !this.connection.isClosed()) {
      try {
        await this.#takeSome(stream, durable);
      } catch (error) {
        if (this.#stopping || this.connection.isClosed()) break;
        this.#options.onError(error);
        await delay(PAUSE_MS);
      }
    }
    await Promise.allSettled(this.#running);
  }

  /** Ask for as many as there is room for: nothing is fetched that does not begin at once. */
  async #takeSome(stream: string, durable: string): Promise<void> {
    const consumer = await jetstream(this.connection).consumers.get(stream, durable);
    while (!this.#stopping && !this.connection.isClosed()) {
      const room = this.#options.concurrency - this.#running.size;
      if (room === 0) {
        await Promise.race(this.#running);
        continue;
      }
      this.#fetching = await consumer.fetch({ max_messages: room, expires: FETCH_MS });
      if (this.#stopping) this.#fetching.stop();
      for await (const message of this.#fetching) this.#begin(message);
    }
  }

  #begin(message: JsMsg): void {
    if (this.#stopping) {
      message.nak();
      return;
    }
    const firing = this.#read(message);
    if (firing === undefined) return;
    const before = this.#lastOf.get(firing.serviceCallId);
    const work = this.#handle(message, firing, before).finally(() => {
      this.#running.delete(work);
      if (this.#lastOf.get(firing.serviceCallId) === work) this.#lastOf.delete(firing.serviceCallId);
    });
    this.#running.add(work);
    this.#lastOf.set(firing.serviceCallId, work);
  }

  #read(message: JsMsg): Firing | undefined {
    try {
      return firingOf(message);
    } catch (error) {
      this.#options.onError(error);
      message.term("not an event of the timer service");
      return undefined;
    }
  }

  async #handle(message: JsMsg, firing: Firing, before: Promise<void> | undefined): Promise<void> {
    const heartbeat = setInterval(() => message.working(), this.#options.ackWaitMs / 3);
    try {
      await before;
      if (!this.#handled.has(firing.id)) await this.handler(firing);
      this.#remember(firing.id);
      message.ack();
    } catch (error) {
      this.#options.onError(error, firing);
      const delays = this.#options.retryDelaysMs;
      if (error instanceof Reject) message.term(error.message);
      else message.nak(delays[Math.min(firing.attempt, delays.length) - 1]);
    } finally {
      clearInterval(heartbeat);
    }
  }

  #remember(id: string): void {
    this.#handled.add(id);
    for (const oldest of this.#handled) {
      if (this.#handled.size <= REMEMBERED) break;
      this.#handled.delete(oldest);
    }
  }
}

function firingOf(message: JsMsg): Firing {
  const { id, type, correlationId, payload } = message.json<DueTimeReached | TimerExpired>();
  const at = "reachedAt" in payload ? payload.reachedAt : payload.expiredAt;
  const { tenantId, serviceCallId, dueAt, generation } = payload;
  if (typeof id !== "string" || typeof serviceCallId !== "string") throw new TypeError(`not an event on ${message.subject}`);
  const firing = { id, type, tenantId, serviceCallId, dueAt: new Date(dueAt), at: new Date(at), generation };
  return { ...firing, attempt: message.info.deliveryCount, ...(correlationId !== undefined && { correlationId }) };
}
