#!/bin/sh
# Makes a picture of a section of a benchmark's report, by headless Chromium.
#   scripts/picture.sh REPORT.html [PICTURE.png]    the picture goes to docs/bench.png unless another place is told
#   SECTION=cycle WIDTH=1280 DARK=1 ALL=1 scripts/picture.sh …    another section than `contended`; how wide; as in the dark; the whole page
# CHROMIUM names the browser when it is not called chromium, chromium-browser or google-chrome.
set -eu
report=${1:?usage: scripts/picture.sh REPORT.html [PICTURE.png]}
picture=${2:-$(dirname "$0")/../docs/bench.png}
[ -r "$report" ] || { echo "$report: no such report" >&2; exit 2; }
browser=${CHROMIUM:-}
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
[ -n "$browser" ] || { echo "no Chromium found: install it, or name it with CHROMIUM" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The section without what is before the first one, which is the page's head.
if [ -n "${ALL:-}" ]; then
    cp "$report" "$work/page.html"
else
    awk -v id="<h2 id=\"${SECTION:-contended}\"" '/<\/head>/ { print; skip = 1 } /<h2 id=/ { skip = !index($0, id) } !skip { print }' \
        "$report" >"$work/page.html"
fi
# How high the page is at this width, the page tells itself.
cp "$work/page.html" "$work/measure.html"
echo '<script>document.title = "high:" + document.documentElement.scrollHeight + ":"</script>' >>"$work/measure.html"

# A profile of its own, and nothing that asks the network. Root, as in a container, cannot have the browser's sandbox.
run() {
    [ "$(id -u)" -ne 0 ] || set -- --no-sandbox "$@"
    [ -z "${DARK:-}" ] || set -- --blink-settings=preferredColorScheme=0 "$@"
    "$browser" --headless --disable-gpu --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --hide-scrollbars "--user-data-dir=$work/profile" "$@" \
        2>"$work/log" || { cat "$work/log" >&2; exit 1; }
}
width=${WIDTH:-1280}
high=$(run "--window-size=$width,800" --dump-dom "file://$work/measure.html" | sed -n 's/.*high:\([0-9]*\):<\/title>.*/\1/p')
[ -n "$high" ] || { cat "$work/log" >&2; echo "the browser did not tell how high the page is" >&2; exit 1; }
run "--window-size=$width,$high" "--screenshot=$work/picture.png" "file://$work/page.html" >"$work/out"
[ -s "$work/picture.png" ] || { cat "$work/log" >&2; echo "the browser left no picture" >&2; exit 1; }
mkdir -p "$(dirname "$picture")"
mv "$work/picture.png" "$picture"
