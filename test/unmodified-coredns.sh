#!/bin/sh
# Build the plugin into the CoreDNS of go.mod with the commands of docs/install.md. This
# happens in a copy of the module cache's tree.
set -eu
cd "$(dirname "$0")/.."

module=github.com/hamlet-federation/coredns-federation
root=$PWD

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

go mod download github.com/coredns/coredns
cp -R "$(go list -m -f '{{.Dir}}' github.com/coredns/coredns)" "$tmp/coredns"
chmod -R u+w "$tmp/coredns"
cd "$tmp/coredns"

awk -v line="federation:$module/plugin" '
	{ print }
	/^kubernetes:/ { print line; found++ }
	END { if (found != 1) { print "plugin.cfg: want one line for kubernetes, found " found + 0 > "/dev/stderr"; exit 1 } }
' plugin.cfg >"$tmp/plugin.cfg"
cp "$tmp/plugin.cfg" plugin.cfg

go mod edit -replace="$module=$root"
if ! go get "$module@v0.0.0" >"$tmp/get" 2>&1; then
	cat "$tmp/get" >&2
	# Without a network, go get lacks the versions that CoreDNS itself requires. The go.mod of
	# this module has the same result, and its modules are downloaded.
	echo "unmodified-coredns: go get failed; going on with this module's go.mod" >&2
	cp "$root/go.mod" "$root/go.sum" .
	go mod edit -module=github.com/coredns/coredns -droprequire=github.com/coredns/coredns \
		-require="$module@v0.0.0" -replace="$module=$root"
fi
GOFLAGS="${GOFLAGS:-} -mod=mod" go generate coredns.go
GOFLAGS="${GOFLAGS:-} -mod=mod" go build -buildvcs=false -o "$tmp/bin/coredns" .

"$tmp/bin/coredns" -plugins >"$tmp/plugins"
if ! grep -q '^federation$' "$tmp/plugins"; then
	echo 'unmodified-coredns: the build does not list the plugin; it has:' >&2
	cat "$tmp/plugins" >&2
	exit 1
fi
"$tmp/bin/coredns" -version
grep '^federation$' "$tmp/plugins"
