#!/bin/sh
# Build the plugin into releases of CoreDNS with the commands of docs/install.md, each in a
# copy of the module cache's tree, test it there, and compare with the table of that page.
# The arguments are versions.
set -eu
cd "$(dirname "$0")/.."

module=github.com/hamlet-federation/coredns-federation
root=$PWD
newest=$(go list -m -f '{{.Version}}' github.com/coredns/coredns)
errors=0

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# build builds the plugin into the tree of a version, and reports whether all is well.
build() (
	set -e
	version=$1
	tree=$tmp/$version
	cd "$root"
	folder=$(go mod download -json "github.com/coredns/coredns@$version" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
	cp -R "$folder" "$tree"
	chmod -R u+w "$tree"
	cd "$tree"

	awk -v line="federation:$module/plugin" '
		{ print }
		/^kubernetes:/ { print line; found++ }
		END { if (found != 1) { print "plugin.cfg: want one line for kubernetes, found " found + 0 > "/dev/stderr"; exit 1 } }
	' "$folder/plugin.cfg" >plugin.cfg

	# Most of the time of a build goes to the clients of clouds and clusters. None of them has to do
	# with the plugin, and the release of go.mod is built with all.
	if [ "$version" != "$newest" ]; then
		sed -i '/^\(trace\|route53\|azure\|clouddns\|k8s_external\|kubernetes\|etcd\|nomad\):/d' plugin.cfg
	fi

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
	export GOFLAGS="${GOFLAGS:-} -mod=mod"
	go generate coredns.go
	go build -buildvcs=false -o "$tmp/coredns" .
	"$tmp/coredns" -plugins >"$tmp/plugins"
	if ! grep -q '^federation$' "$tmp/plugins"; then
		echo 'unmodified-coredns: the build does not list the plugin; it has:' >&2
		cat "$tmp/plugins" >&2
		return 1
	fi
	"$tmp/coredns" -version
	rm "$tmp/coredns"
	go test "$module/plugin/..."

	# The cache asks the plugins behind it with an interface assertion.
	cached=yes
	if grep -q 'CacheBypassZones() \[\]string' plugin/cache/*.go; then cached=no; fi
	row="| $version | $cached |"
	if ! grep -qxF "$row" "$root/docs/install.md"; then
		echo "unmodified-coredns: docs/install.md lacks the row: $row" >&2
		return 1
	fi
	echo "$row"
)

for version; do
	# In a condition, set -e would be off within the function.
	set +e
	build "$version"
	code=$?
	set -e
	if [ $code != 0 ]; then
		echo "unmodified-coredns: $version failed" >&2
		errors=1
	fi
done
exit $errors
