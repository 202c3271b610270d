"""TLS: the certificate and the key that uvicorn serves with."""

import ssl
from typing import Any

from gradus.errors import ConfigError
from gradus.server.config import ServerConfig


def tls_options(config: ServerConfig) -> dict[str, Any]:
    """Return uvicorn's options; {} without TLS. Raises ConfigError for unusable files, before loading anything."""
    if config.tls_cert is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigError(f"tls_cert {config.tls_cert} and tls_key {config.tls_key}: {reason.lower()}") from error
    return {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}


def _no_password() -> str:
    """Answer OpenSSL, which would otherwise prompt at the terminal."""
    return ""
