/** The service refused a request; `code` is as in HTTP, the message says what is allowed. */
export class RequestRefused extends Error {
  constructor(readonly code: number, message: string, readonly retryAfterS?: number) {
    super(message);
    this.name = "RequestRefused";
  }
}

/** Nobody answers: no service runs on this prefix. Commands, without `confirm`, wait for it. */
export class ServiceAway extends Error {
  override name = "ServiceAway";
}

/** No answer came in time: it is not known what became of it. Everything may be repeated. */
export class NoAnswer extends Error {
  override name = "NoAnswer";
}
