"""What a manifest says of itself: whether its numbers add up, and fit its config."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from beam_prep.data.schema import PROMPT_COMPLETION
from beam_prep.formats.manifest import MANIFEST, ShardReceipt, folder_of_shard, sum_shards
from beam_prep.shards.domains import folder_of, part_of
from beam_prep.shards.mix import NOT_SAMPLED
from beam_prep.shards.pack import cuts_rows
from beam_prep.shards.plan import LedgerTotals

_CUT_COUNTERS = ("truncated_rows", "truncated_tokens", "truncated_eos", "truncated_to_pack")


def count_problems(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """Checks the manifest's own numbers."""
    for place, number in _numbers("", {key: manifest[key] for key in ("ledger", "counters", "totals")}):
        if number < 0 or (isinstance(number, float) and not place.endswith("fill_rate")):
            yield f"{MANIFEST}: found {place} {number}, wanted a count"
    yield from _sums(manifest, shards)
    yield from _numbering(manifest, shards)
    yield from _counters(manifest, shards)
    yield from _roles(manifest)
    yield from _splits(manifest, shards)
    yield from _mix(manifest, shards)
    yield from _inputs(manifest["inputs"])
    yield from _columns(manifest)
    for shard in shards:
        if shard.packing is not None:
            for problem in _packing(shard, shard.packing, manifest.get("config")):
                yield f"{MANIFEST}: shard {shard.shard} of {shard.part!r}: {problem}"
        for problem in _chunks(shard, manifest.get("config")):
            yield f"{MANIFEST}: shard {shard.shard} of {shard.part!r}: {problem}"


def _numbers(place: str, found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{place}{key}: ", value)
        else:
            yield f"{place}{key}", value


def _sums(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """Checks that numbers add up."""
    totals, counts = manifest["totals"], dict(manifest["ledger"])
    read = counts.pop("read")
    ledger = LedgerTotals(**counts)
    if ledger.read != read:
        yield f"{MANIFEST}: the ledger says read {read}, but kept + dropped + rejected are {ledger.read}"
    if (lines := ledger.blank + ledger.read + ledger.not_read) != ledger.lines:
        yield (
            f"{MANIFEST}: the ledger says lines {ledger.lines}, "
            f"but blank + kept + dropped + rejected + not_read are {lines}"
        )
    summed = sum_shards(shards)
    for key in {**summed, **totals}:
        if totals.get(key) != summed.get(key):
            yield f"{MANIFEST}: totals say {key} {totals.get(key)}, the shards add up to {summed.get(key)}"
    # Turns and chunks cut records, packing joins them; all count those that they were given.
    again = manifest.get("repeated", 0)
    given = ledger.kept + again
    where = f"the ledger says kept{f' {ledger.kept}, and repeated are {again}: together' if again else ''}"
    for kind in ("turns", "chunks", "packing"):
        if kind in totals:
            if totals[kind]["rows"] != given:
                yield f"{MANIFEST}: totals say {kind}: rows {totals[kind]['rows']}, {where} {given}"
            left = "packs" if kind == "packing" else kind
            given = totals[kind][left] - totals[kind].get("chunks_untrained", 0)
            where = f"they say {kind}: {left} that are written"
    if totals["rows"] != given:
        yield f"{MANIFEST}: totals say rows {totals['rows']}, {where} {given}"
    for shard in shards:
        for column, count in shard.trained.items():
            of = next((c["of"] for c in manifest["columns"] if c["name"] == column), None)
            if of in shard.tokens and count > shard.tokens[of]:
                where = f"{MANIFEST}: shard {shard.shard} of {shard.part!r}"
                yield f"{where}: found trained {count} of {column!r}, wanted at most {shard.tokens[of]}"
    if "config" in manifest:
        most = manifest["config"]["preprocessing"]["max_items"]
        kept = _kept(manifest)
        if (most is not None and kept > most) or (ledger.not_read and kept != most):
            yield f"{MANIFEST}: the ledger says kept {kept} and not_read {ledger.not_read}, max_items is {most}"


def _kept(manifest: Mapping[str, Any]) -> int:
    """Records that are kept before a mix leaves some of them out."""
    ledger = manifest["ledger"]
    found: int = ledger["kept"] + (ledger["dropped"].get(NOT_SAMPLED, 0) if "mix" in manifest else 0)
    return found


def _numbering(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """Shards are numbered from 0, in order of splits and domains; a file is listed once, and is in its folder."""
    numbers: dict[tuple[str | None, str], list[int]] = {}
    for shard in shards:
        numbers.setdefault((shard.split, shard.domain), []).append(shard.shard)
    in_order = True
    for (split, domain), found in numbers.items():
        if sorted(found) != list(range(len(found))):
            name = part_of(split, domain)
            yield f"{MANIFEST}: the shards of {name!r} are numbered {sorted(found)}, wanted 0 to {len(found) - 1}"
        in_order &= found == sorted(found)
    place = {name: number for number, name in enumerate(manifest.get("splits", ()))}
    parts = sorted(numbers, key=lambda part: (place.get(part[0] or "", -1), part[1]))
    if not in_order or list(numbers) != parts or _changes(shards) > len(numbers):
        order = "domain and number" if not place else "split, domain and number"
        yield f"{MANIFEST}: the shards are not in order of {order}, which is the order of rows"
    for domain, folder in manifest["domains"].items():
        if folder != folder_of(domain):
            yield f"{MANIFEST}: found the folder {folder!r} of {domain!r}, wanted {folder_of(domain)!r}"
    domains = sorted({domain for _, domain in numbers})
    if domains != sorted(manifest["domains"]):
        yield f"{MANIFEST}: found the domains {sorted(manifest['domains'])}, the shards are of {domains}"
    for shard in shards:
        if shard.domain not in manifest["domains"]:
            continue
        folder = folder_of_shard(manifest, shard.domain, shard.split)
        for file in shard.files:
            if not file.path.startswith(f"{folder}/"):
                yield f"{MANIFEST}: lists {file.path!r} of shard {shard.shard} of {shard.part!r}, wanted in {folder!r}"
    listed = [file.path for shard in shards for file in shard.files]
    listed += [file["path"] for file in [*manifest["rejects"], *manifest["files"]]]
    for path, count in Counter(listed).items():
        if count > 1:
            yield f"{MANIFEST}: lists {path!r} {count} times, wanted once"


def _changes(shards: Sequence[ShardReceipt]) -> int:
    """How often the part changes, from none on."""
    parts = [shard.part for shard in shards]
    return sum(one != other for one, other in zip([None, *parts], parts, strict=False))


def _splits(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """The splits are those of the config, every shard is in one of them, and their totals are those of their shards."""
    splits = manifest.get("splits", {})
    if "config" in manifest and list(splits) != (wanted := list(manifest["config"]["output"].get("splits") or ())):
        yield f"{MANIFEST}: found the splits {list(splits)}, the config says {wanted}"
    for name in dict.fromkeys(shard.split for shard in shards):
        if name not in (splits or [None]):
            yield f"{MANIFEST}: found shards of split {name!r}, wanted one of {list(splits)}"
    for name, said in splits.items():
        summed = sum_shards([shard for shard in shards if shard.split == name])
        for key in {**summed, **said}:
            if said.get(key) != summed.get(key):
                found = f"{key} {said.get(key)} of split {name!r}"
                yield f"{MANIFEST}: splits say {found}, its shards add up to {summed.get(key)}"


def _mix(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """What the manifest says of a mix adds up, and fits the config and the shards."""
    mix, repeated = manifest.get("mix", {}), manifest.get("repeated", 0)
    config = manifest.get("config")
    wanted = dict.fromkeys(mix) if config is None else config["output"].get("mix") or {}
    if sorted(mix) != sorted(wanted):
        yield f"{MANIFEST}: found a mix of {sorted(mix)}, the config says {sorted(wanted)}"
    more = sum(each["rows"] - each["records"] for each in mix.values())
    if repeated != more:
        yield f"{MANIFEST}: found repeated {repeated}, the rows of the mix beyond its records are {more}"
    split = next(iter(manifest.get("splits", ())), None)
    for domain, each in mix.items():
        budget = (wanted.get(domain) or {}).get("tokens")
        if budget is not None and int(Fraction(str(budget))) != each["wanted_tokens"]:
            yield f"{MANIFEST}: found wanted_tokens {each['wanted_tokens']} of {domain!r}, the config says {budget}"
        if each["tokens"] < each["wanted_tokens"] or each["records"] > each["rows"]:
            yield f"{MANIFEST}: found a mix of {domain!r} that does not add up: {each}"
        given = [_given(shard) for shard in shards if (shard.split, shard.domain) == (split, domain)]
        if sum(given) != each["rows"]:
            yield f"{MANIFEST}: found rows {each['rows']} of {domain!r} in the mix, its shards were given {sum(given)}"


def _given(shard: ShardReceipt) -> int:
    """The rows that a shard was made of."""
    made = shard.turns or shard.chunks or shard.packing
    return shard.rows if made is None else made["rows"]


def _counters(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt]) -> Iterator[str]:
    """Counters of kept rows are not more than these."""
    counters, kept = manifest["counters"], manifest["totals"].get("turns", {}).get("turns", _kept(manifest))
    rows, tokens, eos, to_pack = (counters.get(name, 0) for name in _CUT_COUNTERS)
    for what, found, most in (
        ("truncated_rows", rows, kept),
        ("truncated_rows", rows, tokens),
        ("truncated_eos", eos, rows),
        ("truncated_to_pack", to_pack, tokens),
    ):
        if found > most:
            yield f"{MANIFEST}: counters say {what} {found}, wanted at most {most}"
    if tokens and not rows:
        yield f"{MANIFEST}: counters say truncated_tokens {tokens}, and no truncated_rows"
    if "config" not in manifest:
        return
    rules = manifest["config"]["preprocessing"]
    if rules["truncation_mode"] in ("drop", "error", "chunk") and rows + tokens + eos + to_pack:
        yield f"{MANIFEST}: counters say truncated_rows {rows}, truncation_mode is {rules['truncation_mode']!r}"
    packing = rules["packing_strategy"]
    cut = sum(shard.packing["tokens_cut"] for shard in shards if shard.packing is not None)
    if to_pack != (cut if cuts_rows(packing) else 0) and "mix" not in manifest:  # which takes some rows, some often
        yield f"{MANIFEST}: counters say truncated_to_pack {to_pack}, the shards' tokens_cut add up to {cut}"


def cut_problems(manifest: Mapping[str, Any], full: int) -> Iterator[str]:
    """Compares the counter of rows that were cut with those that are as long as rows may be."""
    rows = manifest["counters"].get("truncated_rows", 0)
    if rows > full and "mix" not in manifest:
        yield f"{MANIFEST}: counters say truncated_rows {rows}, found {full} rows of the greatest length"


def _roles(manifest: Mapping[str, Any]) -> Iterator[str]:
    # Labels that are shifted lose a token of each row.
    tokens = sum(manifest["totals"]["tokens"].values())
    rows = manifest["totals"].get("turns", {}).get("turns", manifest["ledger"]["kept"])
    tokens += rows * any(column["shifted"] for column in manifest["columns"])
    config = manifest.get("config") or {}
    if config.get("output", {}).get("columns") == "prompt_completion":  # which both sides had
        prompt = PROMPT_COMPLETION[2]
        tokens += manifest["totals"]["tokens"].get(config["output"].get("names", {}).get(prompt, prompt), 0)
    if "chunks" in manifest["totals"]:
        chunks = manifest["totals"]["chunks"]
        tokens += chunks["tokens_left_out"] - chunks["tokens_repeated"]
    roles = manifest.get("roles", {})
    for role, counts in roles.items():
        if min(counts.values()) < 0 or counts["trained"] > counts["tokens"]:
            yield f"{MANIFEST}: found of the role {role!r} trained {counts['trained']} of {counts['tokens']} tokens"
    # Roles are those of the records before a mix, which takes some of them, and some often.
    if (found := sum(counts["tokens"] for counts in roles.values())) > tokens and "mix" not in manifest:
        yield f"{MANIFEST}: the roles' tokens add up to {found}, wanted at most {tokens}"


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    nothing = hashlib.sha256().hexdigest()
    for entry in inputs:
        path, size, digest = entry["path"], entry["size"], entry["digest"]
        if not isinstance(path, str) or not path or not isinstance(size, int) or size < 0:
            yield f"{MANIFEST}: inputs: found the path {path!r} and the size {size!r}"
        elif not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            yield f"{MANIFEST}: inputs: {path}: found the digest {digest!r}, wanted 64 hexadecimal digits"
        elif size == 0 and digest != nothing:
            yield f"{MANIFEST}: inputs: {path}: found the digest {digest} of a file of 0 bytes, wanted {nothing}"
    for path, count in Counter(entry["path"] for entry in inputs).items():
        if count > 1:
            yield f"{MANIFEST}: inputs: lists {path!r} {count} times, wanted once"


def _columns(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The columns fit each other, and the config."""
    columns = {column["name"]: column for column in manifest["columns"]}
    if len(columns) != len(manifest["columns"]):
        yield f"{MANIFEST}: columns: found {[column['name'] for column in manifest['columns']]}, wanted each once"
    for name, column in columns.items():
        of = columns.get(column["of"])
        if column["of"] is not None and (of is None or of["role"] != "ids" or (of["depth"] != column["depth"])):
            yield f"{MANIFEST}: columns: {name!r} is of {column['of']!r}, which is no column of ids of its depth"
        if column["role"] in ("mask", "labels") and of is None:
            yield f"{MANIFEST}: columns: {name!r} has the role {column['role']!r}, wanted the ids that it belongs to"
    if "config" not in manifest:
        return
    output, rules = manifest["config"]["output"], manifest["config"]["preprocessing"]
    names = output.get("names", {})
    wanted = {names.get(name, name): dtype for name, dtype in output["dtype"].items()}
    found = {name: column["dtype"] for name, column in columns.items()}
    if list(found.items()) != list(wanted.items()):
        yield f"{MANIFEST}: columns: found {found}, the config says {wanted}"
    if (formats := manifest["formats"]) != output["storage_format"]:
        yield f"{MANIFEST}: found the formats {formats}, the config says {output['storage_format']}"
    for column in columns.values():
        if column["role"] == "labels" and column["shifted"] != rules["shift"]:
            name, shifted = column["name"], column["shifted"]
            yield f"{MANIFEST}: columns: found shifted {shifted} of {name!r}, the config says {rules['shift']}"


def _chunks(shard: ShardReceipt, config: Mapping[str, Any] | None) -> Iterator[str]:
    """The counts of chunks fit each other, and the config."""
    chunks = shard.chunks
    if config is not None and (chunks is not None) != (config["preprocessing"]["truncation_mode"] == "chunk"):
        yield f"found chunks {chunks}, truncation_mode is {config['preprocessing']['truncation_mode']!r}"
    if chunks is None:
        return
    if min(chunks.values()) < 0:
        yield f"found chunks {dict(chunks)}, wanted counts"
    made = chunks["chunks"] - chunks["chunks_untrained"]
    into = shard.rows if shard.packing is None else shard.packing["rows"]
    if made != into:
        bare = chunks["chunks_untrained"]
        yield f"found chunks {chunks['chunks']}, of which {bare} untrained, wanted {into} to write"
    if not chunks["rows"] + chunks["rows_split"] <= chunks["chunks"] or chunks["rows_split"] > chunks["rows"]:
        yield f"found {chunks['chunks']} chunks of {chunks['rows']} rows, of which {chunks['rows_split']} are split"
    most = max(shard.tokens.values(), default=0)
    if chunks["tokens_repeated"] > most:
        yield f"found chunks: tokens_repeated {chunks['tokens_repeated']}, wanted at most {most}"


def _packing(shard: ShardReceipt, packing: Mapping[str, int], config: Mapping[str, Any] | None) -> Iterator[str]:
    """The counts of packing fit each other."""
    rows, capacity = packing["rows"], packing["capacity"]
    if min(packing.values()) < 0:
        yield f"found packing {dict(packing)}, wanted counts"
    if packing["packs"] != shard.rows:
        yield f"found packs {packing['packs']}, wanted its rows, {shard.rows}"
    if any(packing["tokens"] != count for count in shard.tokens.values()):
        yield f"found packing: tokens {packing['tokens']}, wanted {dict(shard.tokens)}"
    for name, most in (
        ("rows_empty", rows),
        ("rows_cut", min(rows, packing["tokens_cut"])),
        ("rows_split", rows - packing["rows_empty"]),
        ("packs_untrained", packing["packs"]),
        ("tokens", packing["packs"] * capacity),
    ):
        if packing.get(name, 0) > most:
            yield f"found packing: {name} {packing[name]}, wanted at most {most}"
    if config is not None:
        rules = config["preprocessing"]
        wanted = rules["max_packed_len"] or rules["max_seq_len"]
        never = ("rows_split",) if cuts_rows(rules["packing_strategy"]) else ("rows_cut", "tokens_cut")
        if capacity != wanted:
            yield f"found packing: capacity {capacity}, the config says {wanted}"
        for name in never:
            if packing[name]:
                yield f"found packing: {name} {packing[name]}, wanted 0 with {rules['packing_strategy']!r}"
