export { Consumer, Reject, type ConsumeOptions, type Firing, type Handler } from "./consumer.js";
export { NoAnswer, RequestRefused, ServiceAway } from "./errors.js";
export { Timers, type ListOptions, type ScheduleOptions, type TimersOptions, type Wanted } from "./timers.js";
export type { CancelAnswer, ScheduleAnswer, TimerView } from "./wire.js";
