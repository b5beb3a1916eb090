"""One target under atheris, which follows the branches that an input takes; ends with the process."""

import sys

import atheris

with atheris.instrument_imports(include=["timer_service"]):
    import timer_service.adapters.codec
    import timer_service.adapters.nats.client
    import timer_service.adapters.nats.requests
    import timer_service.cli.main
    import timer_service.config  # noqa: F401

from tests.fuzz.limits import Watch
from tests.fuzz.targets import TARGETS


def main() -> None:
    target, *arguments = sys.argv[1:]
    watch = Watch(TARGETS[target])
    atheris.Setup([sys.argv[0], *arguments], watch.feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
