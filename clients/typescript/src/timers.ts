import { jetstream } from "@nats-io/jetstream";
import { errors, type Msg, type NatsConnection } from "@nats-io/nats-core";
import { randomUUID } from "node:crypto";

import { type ConsumeOptions, Consumer, type Handler } from "./consumer.js";
import { NoAnswer, RequestRefused, ServiceAway } from "./errors.js";
import type { CancelAnswer, GetAnswer, ListAnswer, ListRequest, ScheduleAnswer, TimerView } from "./wire.js";

const TRIES = 3;
const MAX_SPAN_MS = 315_576_000_000;
const TENANT = /^[A-Za-z0-9_-]{1,64}$/;
const SERVICE_CALL = /^[^\s\p{Cc}\p{Cs}]{1,255}$/u;

export interface TimersOptions {
  tenant: string;
  /** The setting TIMER_SUBJECT_PREFIX of the service. */
  prefix?: string;
  timeoutMs?: number;
}

/** When a timer is due: at a moment, or so many milliseconds after the broker (or the service) got to know. */
export type Wanted = ({ dueAt: Date } | { delayMs: number }) & {
  /** The first due time wins: if there is such a timer, nothing changes. */
  ifAbsent?: boolean;
  /** Later than this after its due time it is told as TimerExpired. */
  expiresAfterMs?: number;
};

export interface ScheduleOptions {
  correlationId?: string;
  /** Ask the service and return its answer, in place of publishing a command that it reads a moment later. */
  confirm?: boolean;
}

export type ListOptions = Omit<ListRequest, "cursor" | "dueFrom" | "dueBefore"> & {
  dueFrom?: Date;
  dueBefore?: Date;
};

/** The timers of one tenant. */
export class Timers {
  readonly #connection: NatsConnection;
  readonly #tenant: string;
  readonly #prefix: string;
  readonly #timeoutMs: number;

  constructor(connection: NatsConnection, { tenant, prefix = "timer", timeoutMs = 5_000 }: TimersOptions) {
    if (!TENANT.test(tenant)) throw new RangeError(`tenant must be 1 to 64 of A-Z a-z 0-9 _ - (got ${JSON.stringify(tenant)})`);
    this.#connection = connection;
    this.#tenant = tenant;
    this.#prefix = prefix;
    this.#timeoutMs = timeoutMs;
  }

  /** Set the due time of a timer. */
  async schedule(id: string, wanted: Wanted, options: ScheduleOptions & { confirm: true }): Promise<ScheduleAnswer>;
  async schedule(id: string, wanted: Wanted, options?: ScheduleOptions & { confirm?: false }): Promise<void>;
  async schedule(id: string, wanted: Wanted, options: ScheduleOptions = {}): Promise<ScheduleAnswer | void> {
    const { correlationId, confirm } = options;
    const fields = { serviceCallId: checkedId(id), ...fieldsOf(wanted) };
    if (confirm) return this.#ask<ScheduleAnswer>("schedule", { ...fields, correlationId });
    await this.#publish("ScheduleTimer", fields, correlationId);
  }

  /** Say that a timer is no longer wanted. */
  async cancel(id: string, options: { confirm: true }): Promise<CancelAnswer>;
  async cancel(id: string, options?: { confirm?: false }): Promise<void>;
  async cancel(id: string, options: { confirm?: boolean } = {}): Promise<CancelAnswer | void> {
    const fields = { serviceCallId: checkedId(id) };
    if (options.confirm) return this.#ask<CancelAnswer>("cancel", fields);
    await this.#publish("CancelTimer", fields);
  }

  /** Return a timer, or undefined if there is none. */
  async get(id: string): Promise<TimerView | undefined> {
    try {
      return (await this.#ask<GetAnswer>("get", { serviceCallId: checkedId(id) })).timer;
    } catch (error) {
      if (error instanceof RequestRefused && error.code === 404) return undefined;
      throw error;
    }
  }

  /** Yield the tenant's timers by due time, page by page. */
  async *list({ dueFrom, dueBefore, ...narrowed }: ListOptions = {}): AsyncGenerator<TimerView, void> {
    const request = {
      ...narrowed,
      ...(dueFrom && { dueFrom: timeText(dueFrom, "dueFrom") }),
      ...(dueBefore && { dueBefore: timeText(dueBefore, "dueBefore") }),
    };
    let cursor: string | undefined;
    do {
      const page: ListAnswer = await this.#ask<ListAnswer>("list", { ...request, cursor });
      yield* page.timers;
      cursor = page.cursor;
    } while (cursor !== undefined);
  }

  /** Handle what is due through the durable consumer `<tenant>-<name>`, which keeps its place while nobody runs. */
  async consume(name: string, handler: Handler, options: ConsumeOptions = {}): Promise<Consumer> {
    return Consumer.start(this.#connection, { tenant: this.#tenant, prefix: this.#prefix, name }, handler, options);
  }

  async #publish(type: string, fields: object, correlationId?: string): Promise<void> {
    const id = randomUUID();
    const tenantId = this.#tenant;
    const payload = { _tag: type, tenantId, ...fields };
    const body = JSON.stringify({ id, type, tenantId, timestampMs: Date.now(), correlationId, payload });
    const subject = `${this.#prefix}.commands.${tenantId}.${type}`;
    for (let attempt = 1; ; attempt++) {
      try {
        // Under the same id each time: the broker stores it once.
        await jetstream(this.#connection).publish(subject, body, { msgID: id, timeout: this.#timeoutMs });
        return;
      } catch (error) {
        if (isAway(error)) throw new ServiceAway(`no stream takes ${subject}: has the service ever run with this prefix?`, { cause: error });
        if (!(error instanceof errors.TimeoutError)) throw error;
        if (attempt === TRIES) throw new NoAnswer(`the broker did not confirm ${type}`, { cause: error });
      }
    }
  }

  async #ask<Answer>(endpoint: string, request: object): Promise<Answer> {
    const subject = `${this.#prefix}.api.${this.#tenant}.${endpoint}`;
    let answer: Msg;
    try {
      answer = await this.#connection.request(subject, JSON.stringify(request), { timeout: this.#timeoutMs });
    } catch (error) {
      if (isAway(error)) throw new ServiceAway(`no service answers on ${subject}`, { cause: error });
      if (error instanceof errors.TimeoutError) throw new NoAnswer(`no answer on ${subject}`, { cause: error });
      throw error;
    }
    const code = answer.headers?.get("Nats-Service-Error-Code");
    if (!code) return answer.json<Answer>();
    const retryAfter = answer.headers?.get("Retry-After");
    const text = answer.headers?.get("Nats-Service-Error") ?? "";
    throw new RequestRefused(Number(code), text, retryAfter ? Number(retryAfter) : undefined);
  }
}

function isAway(error: unknown): boolean {
  // What a publish to no stream throws; nats.js does not export its class.
  if (error instanceof errors.NoRespondersError || (error instanceof Error && error.name === "JetStreamNotEnabled")) return true;
  return error instanceof errors.RequestError && error.isNoResponders();
}

function checkedId(id: string): string {
  if (SERVICE_CALL.test(id)) return id;
  throw new RangeError(`id must be 1 to 255 characters, no whitespace or control characters (got ${JSON.stringify(id)})`);
}

function fieldsOf(wanted: Wanted): object {
  const { ifAbsent, expiresAfterMs } = wanted;
  if ("dueAt" in wanted === "delayMs" in wanted) throw new RangeError("exactly one of dueAt and delayMs is needed");
  const due = "dueAt" in wanted ? { dueAt: timeText(wanted.dueAt, "dueAt") } : { delayMs: span(wanted.delayMs, "delayMs") };
  return { ...due, ifAbsent, ...(expiresAfterMs !== undefined && { expiresAfterMs: span(expiresAfterMs, "expiresAfterMs") }) };
}

function span(value: number, name: string): number {
  if (Number.isInteger(value) && value >= 0 && value <= MAX_SPAN_MS) return value;
  throw new RangeError(`${name} must be a whole number of milliseconds from 0 to ${MAX_SPAN_MS} (got ${value})`);
}

function timeText(value: Date, name: string): string {
  const year = value instanceof Date ? value.getUTCFullYear() : NaN;
  if (year >= 1 && year <= 9999) return value.toISOString();
  throw new RangeError(`${name} must be a Date in the years 1 to 9999 (got ${String(value)})`);
}
