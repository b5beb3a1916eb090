// Written from the code by make docs.

export interface CancelAnswer {
  outcome: string;
  timer: TimerView;
}

export interface DueTimeReached {
  id: string;
  type: "DueTimeReached";
  tenantId: string;
  timestampMs: number;
  payload: {
    _tag?: "DueTimeReached";
    tenantId: string;
    serviceCallId: string;
    dueAt: string;
    generation: number;
    reachedAt: string;
  };
  aggregateId?: string;
  correlationId?: string;
  causationId?: string;
}

export interface GetAnswer {
  timer: TimerView;
}

export interface ListAnswer {
  timers: TimerView[];
  cursor?: string;
}

export interface ListRequest {
  state?: "Scheduled" | "Reached" | "Cancelled" | "Expired";
  correlationId?: string;
  dueFrom?: string;
  dueBefore?: string;
  limit?: number;
  cursor?: string;
}

export interface ScheduleAnswer {
  outcome: string;
  timer: TimerView;
}

export interface TimerExpired {
  id: string;
  type: "TimerExpired";
  tenantId: string;
  timestampMs: number;
  payload: {
    _tag?: "TimerExpired";
    tenantId: string;
    serviceCallId: string;
    dueAt: string;
    generation: number;
    expiredAt: string;
  };
  aggregateId?: string;
  correlationId?: string;
  causationId?: string;
}

export interface TimerView {
  tenantId: string;
  serviceCallId: string;
  state: string;
  dueAt?: string;
  generation: number;
  registeredAt: string;
  correlationId?: string;
  reachedAt?: string;
  cancelledAt?: string;
  expiresAfterMs?: number;
  expiredAt?: string;
  traceparent?: string;
}
