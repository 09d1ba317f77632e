"""What every endpoint shares: strict parameters, and pages of a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

from django.db.models import Model, QuerySet
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.models import Token, User
from apps.api.errors import Forbidden, NotFound, shown
from apps.api.parsing import AlwaysJSON
from apps.api.serializers import Paging, Query
from apps.backends.models import Cluster
from apps.backends.selectors import clusters_in_use
from apps.common.paging import Page, capped_count, page_of
from apps.tenants.models import Tenant
from apps.tenants.selectors import in_subtree, is_admin, tenant_covered

Row = TypeVar("Row", bound=Model)


@cache
def shared(form: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """Return one serializer for all requests: making its fields anew costs more than they do.

    Only its ``run_validation`` and ``to_representation`` are safe to share.
    """
    return form()


class NoQuery(Query):
    """An address that takes no parameters."""


class Endpoint(viewsets.ViewSet):
    """A resource; ``queries`` names the parameters of each action, none where it is not named."""

    queries: ClassVar[dict[str, type[Query]]] = {}
    content_negotiation_class = AlwaysJSON

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check who calls, then the parameters: no action runs with one it does not know."""
        super().initial(request, *args, **kwargs)
        self.asked = self._read_query(request)

    def _read_query(self, request: Request) -> dict[str, Any]:
        sent = request.query_params
        known = self.queries.get(self.action or "")
        if known is None and not sent:
            return {}
        form = (known or NoQuery)()
        problems: dict[str, list[str]] = {}
        for name, values in sent.lists():
            if name not in form.fields:
                problems[shown(name)] = ["There is no such parameter."]
            elif len(values) > 1:
                problems[name] = ["It is given more than once."]
        form = type(form)(data=sent.dict())
        if not form.is_valid():
            problems.update({name: list(map(str, told)) for name, told in form.errors.items()})
        if problems:
            raise serializers.ValidationError(problems)
        return dict(form.validated_data)

    def read(self, form: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
        """Return the checked body."""
        return dict(shared(form).run_validation(request.data))


class Nowhere(APIView):
    """Any other address below /api/: not found, in the one shape, whoever asks."""

    permission_classes = ()
    content_negotiation_class = AlwaysJSON
    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Answer before the method is looked at."""
        raise NotFound("There is no such address.")


def caller(request: Request) -> User:
    """Return who calls; permissions have let in nobody else."""
    user = request.user
    assert isinstance(user, User)  # noqa: S101  narrows the type for mypy
    return user


def token_of(request: Request) -> str:
    """Return the name of the token a call came with, for the audit; empty: a session."""
    return request.auth.name if isinstance(request.auth, Token) else ""


def paged(
    request: Request,
    rows: QuerySet[Row],
    form: type[serializers.BaseSerializer[Any]],
    asked: dict[str, Any],
    *,
    descending: bool = False,
    prepare: Callable[[list[Row]], Sequence[Any]] | None = None,
) -> Response:
    """Answer one page of a list with the addresses of the pages beside it.

    ``prepare`` makes of a page's rows what the form shows.
    """
    page: Page[Row] = page_of(
        rows,
        size=asked["page_size"],
        after=asked.get("after"),
        before=asked.get("before"),
        descending=descending,
    )
    count = capped_count(rows)
    return Response(
        {
            "count": count.number,
            "count_capped": count.capped,
            "next": _address(request, "after", page.after),
            "previous": _address(request, "before", page.before),
            "results": form(page.rows if prepare is None else prepare(page.rows), many=True).data,
        }
    )


def _address(request: Request, name: str, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    query = request.query_params.copy()
    query.pop("after", None)
    query.pop("before", None)
    query[name] = cursor
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")


def page_schema(name: str, form: type[serializers.Serializer[Any]]) -> type[Any]:
    """Return the serializer of one page, for the schema."""
    fields: dict[str, Any] = {
        "count": serializers.IntegerField(help_text="Rows in all; never more than 10,000."),
        "count_capped": serializers.BooleanField(help_text="There are more than counted."),
        "next": serializers.URLField(allow_null=True),
        "previous": serializers.URLField(allow_null=True),
        "results": form(many=True),
    }
    page = type(name, (serializers.Serializer,), fields)
    # Else the document takes the answer of a list for a list of pages.
    return extend_schema_serializer(many=False)(page)


def known_cluster(name: str) -> Cluster:
    """Return a cluster in use; every caller may know of it.

    :raises NotFound: if there is none of this name.
    """
    cluster = clusters_in_use().filter(name=name).first()
    if cluster is None:
        raise NotFound(f"There is no cluster {shown(name)}.")
    return cluster


def admins_only(user: User, what: str) -> None:
    """Refuse who is no admin what only an admin may do.

    :raises Forbidden: saying what that is.
    """
    if not is_admin(user):
        raise Forbidden(f"Only an admin may {what}.")


def visible_tenant(user: User, path: str, *, field: str = "tenant") -> Tenant:
    """Return a tenant the caller sees in full, by its path.

    :raises NotFound: if there is none, or the caller may not know of it.
    """
    tenant = tenant_covered(user, path)
    if tenant is None:
        raise NotFound(f"There is no tenant {shown(path)}.", field=field)
    return tenant


def only_subtree(rows: QuerySet[Row], user: User, asked: dict[str, Any]) -> QuerySet[Row]:
    """Return the rows of the tenant asked for and all below it; all, if none was."""
    if "tenant" not in asked:
        return rows
    return rows.filter(in_subtree(visible_tenant(user, asked["tenant"]).path, "tenant__"))


__all__: Sequence[str] = [
    "Endpoint",
    "Nowhere",
    "Paging",
    "admins_only",
    "caller",
    "known_cluster",
    "only_subtree",
    "page_schema",
    "paged",
    "shared",
    "token_of",
    "visible_tenant",
]
