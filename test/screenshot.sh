#!/bin/sh
# Write docs/status.png: the status page of a CoreDNS with the sample catalog, in chromium.
# Run it in the root of the repository, after `make build`.

name=screenshot
owner_address=127.0.0.1:8008
dns_address=127.0.0.1:1053
status_address=127.0.0.1:9154

owner=
coredns=

end_all() { end "$coredns" "$owner"; }

all_live() {
	must_live owner "$owner"
	must_live coredns "$coredns"
}

answered() { bin/lookup -server "$dns_address" -wait 500ms shop.fed.example A >/dev/null 2>&1; }

. test/functions.sh
prepare "$owner_address" "$dns_address" "$status_address"
serve owner "$owner_address" corefile-examples/quickstart/catalog.yaml
owner=$!
bin/coredns -conf corefile-examples/quickstart/Corefile >"$run/coredns.log" 2>&1 &
coredns=$!
await "an answer for shop.fed.example" answered

chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$run/chromium" \
	--window-size=900,620 --virtual-time-budget=10000 --screenshot=docs/status.png \
	"http://localhost:${status_address##*:}/?name=v1.shop.fed.example&type=A" >"$run/chromium.log" 2>&1 || {
	cat "$run/chromium.log" >&2
	exit 1
}
echo "wrote docs/status.png, $(wc -c <docs/status.png) octets"
