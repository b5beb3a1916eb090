"""Mistakes that change nothing anybody could notice, each with the reason."""

EXPLAINED: dict[str, str] = {
    (
        "src/timer_service/adapters/sqlite/looks.py: Looks.find: self._tenants.found_all(now_ms) (0): "
        "'self._tenants.found_all(now_ms)' becomes 'pass'"
    ): "saves work: the next look under backlog visits tenants who have nothing due, and goes on",
    (
        "src/timer_service/adapters/sqlite/limits.py: : LOG_GROWTH_BYTES: Final = MAX_LOG_BYTES // 4 (43): "
        "'4' becomes '5'"
    ): "a log that cannot be emptied is tried 3 MB sooner; that it is tried is tested with other limits",
    (
        "src/timer_service/workflows/hand_over.py: : MAX_HANDED_OVER: Final = 64 (25): '64' becomes '65'"
    ): "one more callback in a transaction; how long others wait for the writer is measured, not counted",
    (
        "src/timer_service/adapters/sqlite/write_ahead_log.py: WriteAheadLog.keep_bounded: "
        "self._next_try_bytes = 0 if is_empty else size + self._limits.log_growth_bytes (23): '0' becomes '1'"
    ): "only ever compared together with the length that a log may have, and the greater of both counts",
    (
        "src/timer_service/adapters/sqlite/due_tenants.py: DueTenants.choose: "
        "chosen = list(islice(waiting, count + 1)) (38): '1' becomes '2'"
    ): "one more than needed is looked at, and cut off",
    (
        'src/timer_service/adapters/postgres/pages.py: : _PAGES: Final = f""" (381): '
        "'LIMIT ' becomes 'LIMIT 1 + '"
    ): "one row more is read of each state and sink; the limit of the whole page cuts it off",
    (
        "src/timer_service/workflows/deliver_callbacks.py: WaitingList.take: "
        "self.look_again()  # They are found again. (0): 'self.look_again()' becomes 'pass'"
    ): "what could not be claimed makes its lanes outdated, and an outdated lane is asked for again anyway",
    (
        "src/timer_service/adapters/sqlite/deliveries.py: : WRITE_RECORDS: Final = tuple( (289): "
        "'True' becomes 'False'"
    ): "both lists have three entries: being strict guards against a change to only one of them",
    (
        "src/timer_service/adapters/postgres/claim.py: PostgresClaim._end: await roll_back(connection) (0): "
        "'await roll_back(connection)' becomes 'pass'"
    ): "a connection inside a transaction is closed when it is given back, which undoes the same",
    (
        "src/timer_service/adapters/postgres/insight.py: PostgresInsight._read_to: "
        'sql, parameters = _over(bounds, f"{_ENDED}, tenant_id, service_call_id", 1) (73): '
        "'1' becomes '2'"
    ): "one row more is read, and only the first is looked at",
    (
        "src/timer_service/adapters/callback_rows.py: : def _retry_policy(text: str) -> RetryPolicy: (-4): "
        "'64' becomes '65'"
    ): "one more of what can be worked out again at any time is remembered",
    (
        'src/timer_service/adapters/sqlite/places.py: : START: Final[Place] = (-(2**62), "") (28): '
        "'62' becomes '63'"
    ): "a moment before every due time, as it has to be; which one does not matter",
    (
        "src/timer_service/adapters/rows.py: timer: return Timer( (815): '21' becomes '22'"
    ): "the two columns of a place are empty together or not at all",
    (
        "src/timer_service/workflows/catch_up.py: : RECENT_FENCES = 16 (16): '16' becomes '17'"
    ): "one look more is remembered, and older ones a seventeenth of the limit apart",
    (
        "src/timer_service/adapters/postgres/looks.py: : MAX_ROUNDS: Final = 5 (20): '5' becomes '6'"
    ): "the last places of a claim are shared out in one step more; that it is full and fair is tested",
    (
        "src/timer_service/adapters/postgres/opening.py: : STATEMENT_CACHE_SIZE: Final = 100 (30): "
        "'100' becomes '101'"
    ): "one more statement stays prepared on a connection, which only saves the server work",
    (
        'src/timer_service/adapters/sqlite/archive.py: : _LAST: Final = """ (120): '
        "'LIMIT ' becomes 'LIMIT 1 + '"
    ): "one row more is read, and only the first is looked at",
    (
        "src/timer_service/adapters/sqlite/opening.py: try_to_open: "
        "sqlite3.connect(uri(path), uri=True).close() (31): 'True' becomes 'False'"
    ): "a SQLite that was built to read addresses does so anyway; with any other, no test of a store passes",
    (
        "src/timer_service/domain/messages.py: : def _time_of_id(due_at: datetime) -> tuple[int, str]: "
        "(-47): '8' becomes '9'"
    ): "one more of what can be worked out again at any time is remembered",
}
