"""Callbacks made ready: the same bytes, whether they are sent or only shown."""

from timer_service.adapters.callback_headers import HeaderVault, secrets_named, with_secrets
from timer_service.adapters.sealing import NotOpened
from timer_service.adapters.webhook.failures import blocked_by, reason_of
from timer_service.adapters.webhook.guard import DeniedAddress
from timer_service.adapters.webhook.keyring import Keyring
from timer_service.adapters.webhook.message import Message, build_message
from timer_service.adapters.webhook.resolver import GuardedResolver, LookUp, look_up
from timer_service.domain.delivery import Blocked, CallbackRequest, Trouble, Unreachable
from timer_service.domain.errors import TimerServiceError, TransientError
from timer_service.domain.messages import TenantId
from timer_service.ports.callback_preview import Preview, Verdict
from timer_service.targets import AddressRules, read_target


class Preparer:
    """Checks the URL of an attempt, opens its headers, puts secrets in and signs."""

    def __init__(self, keyring: Keyring, vault: HeaderVault, rules: AddressRules) -> None:
        self.keyring = keyring
        self.vault = vault
        self.rules = rules

    async def prepare(self, request: CallbackRequest) -> Message | Blocked | Unreachable:
        """Return the exact bytes of an attempt, or why there are none. Raises TimerServiceError."""
        callback = request.callback
        try:
            target = read_target(callback.url, self.rules)
        except ValueError as error:
            return Blocked(f"the URL {error}")
        try:
            headers = self.vault.opened(request.key, callback.headers)
            secrets = await self.keyring.secrets_for(request.tenant_id, callback.signing)
        except NotOpened as error:
            return Unreachable(Trouble.SECRET, str(error))
        named = secrets.named or {}
        missing = sorted(set(secrets_named(headers)) - named.keys())
        if missing:
            return Unreachable(Trouble.SECRET, f"there is no secret named {', '.join(missing)}")
        keys = secrets.keys(callback.signing, request.sent_at)
        return build_message(request, target.url, with_secrets(headers, named), keys)

    async def prepare_to_send(self, request: CallbackRequest) -> Message | Blocked | Unreachable:
        """Return the same; where the secrets cannot be read, the attempt fails and is repeated.

        Where they only cannot be read for now, it is not an attempt.
        """
        try:
            return await self.prepare(request)
        except TransientError as error:
            return Unreachable(Trouble.STORE, error.public)
        except TimerServiceError as error:
            return Unreachable(Trouble.SECRET, error.public)


class HttpCallbackPreview:
    """Shows callbacks as they would be sent.

    It has its own turns for looking up names, so a caller that asks for many previews delays no delivery.
    """

    def __init__(self, preparer: Preparer, *, has_proxy: bool = False, look_up: LookUp = look_up) -> None:
        self._preparer = preparer
        self._has_proxy = has_proxy
        # It answers how things are now.
        self._resolver = GuardedResolver(preparer.rules, look_up, remembered_s=0)

    async def preview(self, request: CallbackRequest) -> Preview | Blocked | Unreachable:
        """Sign a request and judge its receiver; nothing is sent."""
        message = await self._preparer.prepare(request)
        if not isinstance(message, Message):
            return message
        shown = self._preparer.vault.shown(request.key, request.callback.headers)
        headers = message.headers | {name.lower(): value for name, value in shown.items()}
        verdict, detail = await self._judge(request.tenant_id, message.url)
        return Preview(message.method, message.url, headers, message.body, verdict, detail)

    async def _judge(self, tenant_id: TenantId, url: str) -> tuple[Verdict, str | None]:
        target = read_target(url)
        if target.address is not None:
            return Verdict.ALLOWED, None  # It was judged with the URL.
        if self._has_proxy:
            return Verdict.PROXY, None
        try:
            found = await self._resolver.resolve(tenant_id, target.host, target.port)
        except DeniedAddress as error:
            return Verdict.DENIED, blocked_by(error)
        except OSError as error:
            return Verdict.NOT_FOUND, reason_of(error)
        return (Verdict.ALLOWED, None) if found else (Verdict.NOT_FOUND, "the name has no address")
