#!/bin/sh
# Give the module of this tree another path, in every file that has it: imports, go.mod,
# the protocol's stubs, links, units, the chart. The argument is the path. Labels and
# annotations of Kubernetes begin with hamlet-federation.github.io/, and stay: owners and
# consumers of other builds know them.
set -eu
cd "$(dirname "$0")/.."

old=$(sed -n 's/^module //p' go.mod)
new=$1
if [ "$new" = "$old" ]; then
	echo "rename: the module is $old already; say MODULE=example.org/x" >&2
	exit 1
fi
go mod edit -module "$new" # it refuses what is no path
# Stubs have the path in a text with its length. They are generated anew.
grep -rIlF --exclude-dir=.git --exclude-dir=bin --exclude-dir=run --exclude-dir=node_modules --exclude='*.pb.go' "$old" . |
	xargs sed -i "s,$(printf %s "$old" | sed 's/[.]/\\&/g'),$new,g"
go generate ./proto
# A clone has the name of the last part of the path; pages call it as it is called now.
[ "${new##*/}" = "${old##*/}" ] || grep -rIl --include='*.md' --exclude-dir=node_modules "git clone .*$new\$" . |
	xargs sed -i "s,git clone .*$new\$,& ${old##*/},"
# Imports are sorted by path.
gofmt -w cmd deploy federation internal plugin proto test
