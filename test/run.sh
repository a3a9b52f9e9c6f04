#!/bin/sh
# Run everything on one machine: an owner with the sample catalog, CoreDNS, which
# answers for it on 127.0.0.1:1053, and look-ups that show the answers. It runs until
# Ctrl-C; with ONCE=1 it ends after the look-ups.
# Run it in the root of the repository, after `make build`.
set -eu

catalog=corefile-examples/quickstart/catalog.yaml
corefile=corefile-examples/quickstart/Corefile
owner_address=127.0.0.1:8008
dns_address=127.0.0.1:1053
status_address=127.0.0.1:9154
run=run # where the Corefile looks for certificates; ignored by git

owner=
coredns=
nap=

# stop ends the processes that were started here, and waits for them.
stop() {
	status=$?
	trap '' HUP INT TERM
	for pid in $nap $coredns $owner; do
		kill "$pid" 2>/dev/null || :
	done
	for pid in $nap $coredns $owner; do
		wait "$pid" 2>/dev/null || :
	done
	exit "$status"
}
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# must_live NAME PID ends the script when the process has ended, and prints its log.
must_live() {
	if kill -0 "$2" 2>/dev/null; then
		return
	fi
	echo "run: $1 has ended; it wrote:" >&2
	sed 's/^/  /' "$run/$1.log" >&2
	exit 1
}

if ! bin/lookup -free "$owner_address" "$dns_address" "$status_address"; then
	echo "run: these addresses are in use; stop what uses them, perhaps another make run" >&2
	exit 1
fi
rm -rf "$run"
mkdir -p "$run"

echo "Making throwaway certificates in $run/"
bin/federationctl pki "$run" >"$run/pki.log" 2>&1 || {
	cat "$run/pki.log" >&2
	exit 1
}

echo "Starting an owner on $owner_address with $catalog"
bin/federationctl serve --listen "$owner_address" --catalog "$catalog" \
	--cert "$run/owner.pem" --key "$run/owner-key.pem" --ca "$run/ca.pem" >"$run/owner.log" 2>&1 &
owner=$!

echo "Starting CoreDNS on $dns_address with $corefile"
bin/coredns -conf "$corefile" >"$run/coredns.log" 2>&1 &
coredns=$!

# All is ready when the first service is answered. Each try is short, so that the
# end of a process is noticed soon.
tries=0
until bin/lookup -server "$dns_address" -wait 500ms shop.fed.example A >/dev/null 2>&1; do
	must_live owner "$owner"
	must_live coredns "$coredns"
	tries=$((tries + 1))
	if [ "$tries" -ge 240 ]; then
		echo "run: no answer for shop.fed.example; see $run/owner.log and $run/coredns.log:" >&2
		sed 's/^/  /' "$run/owner.log" "$run/coredns.log" >&2
		exit 1
	fi
done
echo
echo "A service, at all of its endpoints:"
bin/lookup -server "$dns_address" shop.fed.example A AAAA SRV TXT
echo
echo "One of its instances, at the endpoints that it selects:"
bin/lookup -server "$dns_address" v1.shop.fed.example A AAAA SRV TXT

if [ "${ONCE:-}" = 1 ]; then
	exit 0
fi
cat <<END

All of it is up. In another terminal:

  bin/lookup -server $dns_address _grpc._tcp.orders.fed.example SRV
  dig @127.0.0.1 -p 1053 primary.stock.db.fed.example A     (where dig is installed)
  bin/federationctl why v1.shop.fed.example
  bin/federationctl watch $owner_address --cert $run/consumer.pem --key $run/consumer-key.pem --ca $run/ca.pem

Add a service to $catalog, save, and look it up.
http://localhost:9154/ shows in a browser what CoreDNS knows.
The logs are in $run/owner.log and $run/coredns.log. Ctrl-C ends it.
END

# Until Ctrl-C, or until one of the two ends by itself.
while :; do
	must_live owner "$owner"
	must_live coredns "$coredns"
	sleep 1 & # in the background, as a signal interrupts only wait
	nap=$!
	wait "$nap" || :
done
