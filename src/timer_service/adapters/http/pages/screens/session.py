"""Log in and log out."""

from timer_service.adapters.http.pages.people import People
from timer_service.adapters.http.pages.visit import Redirect, Screen, Visit


class SessionScreens:
    """The forms that begin and end a session."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def show(self, _: Visit) -> Screen:
        """Ask for a key."""
        return Screen("login.html", {"text": "Log in with a key.", "status": 200, "key": ""}, "Log in")

    async def log_in(self, visit: Visit) -> Redirect:
        """Begin a session, or say why not."""
        cookie = await self._people.log_in(visit.field("key").strip(), visit.headers, visit.headers["peer"])
        return Redirect("./", (cookie,))

    async def log_out(self, _: Visit) -> Redirect:
        """End the session."""
        return Redirect("login", (self._people.log_out(),))
