"""Validates JSON against the part of JSON Schema that the published schemas use: they must be of use to others."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "type", "properties", "required", "default", "enum", "const"),
    *("items", "prefixItems", "minItems", "maxItems", "anyOf", "additionalProperties", "discriminator"),
}


def errors(value: Any, schema: dict[str, Any], definitions: dict[str, Any], where: str = "$") -> list[str]:
    """Return what of a value does not fit a schema; raise if the schema says something that is not understood here."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        return errors(value, definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, where)
    if "anyOf" in schema:
        tried = [errors(value, option, definitions, where) for option in schema["anyOf"]]
        return [] if any(not found for found in tried) else [f"{where}: fits none of {len(tried)}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    if "const" in schema and value != schema["const"]:
        return [f"{where}: {value!r} is not {schema['const']!r}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return [f"{where}: {value!r} is no {kind}"]
    if isinstance(value, dict):
        return _object(value, schema, definitions, where)
    return _array(value, schema, definitions, where) if isinstance(value, list) else []


def _object(value: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any], where: str) -> list[str]:
    found = [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        own = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
        if own is False:
            found.append(f"{where}: {name} is unknown")
        elif isinstance(own, dict):
            found += errors(item, own, definitions, f"{where}.{name}")
    return found


def _array(value: list[Any], schema: dict[str, Any], definitions: dict[str, Any], where: str) -> list[str]:
    first = schema.get("prefixItems", [])
    found = (
        [f"{where}: {len(value)} items"]
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30)
        else []
    )
    for index, item in enumerate(value):
        own = first[index] if index < len(first) else schema.get("items", {})
        if isinstance(own, dict):
            found += errors(item, own, definitions, f"{where}[{index}]")
    return found
