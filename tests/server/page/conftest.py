"""The browser, one for all tests of the page."""

import pytest

from tests.server.page.browser import BROWSER, Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("needs Chromium")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()
