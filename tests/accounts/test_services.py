"""People and their tokens."""

from __future__ import annotations

from datetime import timedelta

import pytest

from apps.accounts.models import Token, User
from apps.accounts.selectors import tokens_of
from apps.accounts.services import (
    authenticate_token,
    create_user,
    issue_token,
    revoke_token,
)
from apps.common.errors import Conflict, Invalid
from tests.factories import NOW, make_user


def test_only_the_digest_of_a_secret_is_kept(db: None) -> None:
    token, secret = issue_token(make_user("u"), name="ci", now=NOW)

    row = str(Token.objects.values().get())
    assert secret not in row
    assert secret[8:] not in row
    assert len(secret) >= 43  # 32 random bytes
    assert len(token.digest) == 64


def test_two_secrets_are_never_the_same(db: None) -> None:
    user = make_user("u")

    assert len({issue_token(user, name="ci", now=NOW)[1] for _ in range(50)}) == 50


def test_a_secret_names_its_token(db: None, django_assert_num_queries: object) -> None:
    token, secret = issue_token(make_user("u"), name="ci", now=NOW)

    assert authenticate_token(secret, now=NOW) == token
    for wrong in ("", secret[:-1], secret + "x", secret.upper(), token.digest, "\ud800"):
        assert authenticate_token(wrong, now=NOW) is None


def test_its_last_use_is_written_at_most_once_a_minute(db: None) -> None:
    token, secret = issue_token(make_user("u"), name="ci", now=NOW)
    for seconds, seen in ((0, 0), (59, 0), (60, 60), (61, 60)):
        authenticate_token(secret, now=NOW + timedelta(seconds=seconds))
        token.refresh_from_db()
        assert token.last_used_at == NOW + timedelta(seconds=seen)


def test_a_revoked_token_and_that_of_someone_who_left_are_none(db: None) -> None:
    user = make_user("u")
    token, secret = issue_token(user, name="ci", now=NOW)
    _, other = issue_token(user, name="ci", now=NOW)

    revoke_token(token, now=NOW)
    revoke_token(token, now=NOW + timedelta(hours=1))

    assert token.revoked_at == NOW
    assert authenticate_token(secret, now=NOW) is None
    assert [t.name for t in tokens_of(user)] == ["ci"]
    User.objects.update(is_active=False)
    assert authenticate_token(other, now=NOW) is None


def test_a_user_is_made_once_whatever_the_case(db: None) -> None:
    create_user("Mira", password="correct horse battery")

    with pytest.raises(Conflict):
        create_user("mira", password="correct horse battery")


@pytest.mark.parametrize(("name", "field"), [("", "username"), ("a\x00", "username")])
def test_a_bad_name_is_refused(name: str, field: str, db: None) -> None:
    with pytest.raises(Invalid) as refusal:
        create_user(name, password="correct horse battery")

    assert refusal.value.field == field


def test_a_weak_password_is_refused(db: None) -> None:
    with pytest.raises(Invalid) as refusal:
        create_user("mira", password="password")

    assert refusal.value.field == "password"
    assert not User.objects.exists()


def test_an_admin_may_use_djangos_admin(db: None) -> None:
    admin = create_user("root", password="rollcall", is_admin=True, check_password=False)

    assert admin.is_staff
    assert admin.is_superuser
    assert admin.check_password("rollcall")
