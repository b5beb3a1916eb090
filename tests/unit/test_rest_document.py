"""The OpenAPI document says what the API does."""

from tests.support.rest import Site


async def test_every_route_is_described_and_nothing_else() -> None:
    site = await Site().open()

    described = {
        (method.upper(), path)
        for path, methods in (await site.ask("GET", "/openapi.json", tenant=None)).json["paths"].items()
        for method in methods
    }
    served = {(method, path) for path, methods in site.app.routes.items() for method in methods}

    assert described == served - {("GET", "/openapi.json"), ("GET", "/v1")}


async def test_the_page_needs_no_key_and_runs_no_script() -> None:
    site = await Site().open()

    page = await site.ask("GET", "/v1", tenant=None)

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert b"<script" not in page.body
    assert b"POST /v1/timers:batch" in page.body
