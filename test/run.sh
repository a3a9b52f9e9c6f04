#!/bin/sh
# Run everything on one machine: an owner with the sample catalog, CoreDNS, which
# answers for it on 127.0.0.1:1053, and look-ups that show the answers, also while the
# owner is stopped. It runs until Ctrl-C, and Enter stops the owner or starts it again;
# with ONCE=1 it ends after the look-ups.
# Run it in the root of the repository, after `make build`.

name=run
catalog=corefile-examples/quickstart/catalog.yaml
corefile=corefile-examples/quickstart/Corefile
owner_address=127.0.0.1:8008
dns_address=127.0.0.1:1053
status_address=127.0.0.1:9154

owner=
coredns=
keys= # what waits for Enter

end_all() { end "$coredns" "$owner" "$keys"; }

all_live() {
	must_live owner "$owner"
	must_live coredns "$coredns"
}

answered() { bin/lookup -server "$dns_address" -wait 500ms shop.fed.example A >/dev/null 2>&1; }

# stale succeeds when the answer says that the owner is lost.
stale() { bin/lookup -server "$dns_address" -edns shop.fed.example A 2>&1 | grep -q "Stale Answer"; }

live() { ! stale; }

start_owner() {
	serve owner "$owner_address" "$catalog"
	owner=$!
}

stop_owner() {
	end "$owner"
	owner=
}

. test/functions.sh
prepare "$owner_address" "$dns_address" "$status_address"

echo "Starting an owner on $owner_address with $catalog"
start_owner

echo "Starting CoreDNS on $dns_address with $corefile"
bin/coredns -conf "$corefile" >"$run/coredns.log" 2>&1 &
coredns=$!

await "an answer for shop.fed.example" answered
echo
echo "A service, at all of its endpoints:"
bin/lookup -server "$dns_address" shop.fed.example A AAAA SRV TXT
echo
echo "One of its instances, at the endpoints that it selects:"
bin/lookup -server "$dns_address" v1.shop.fed.example A AAAA SRV TXT

echo
echo "The owner is stopped. Its names are answered on, and the answers say so:"
stop_owner
await "an answer from a lost owner" stale
bin/lookup -server "$dns_address" -edns shop.fed.example A
echo
echo "The owner is started again:"
start_owner
await "an answer from the owner that is back" live
bin/lookup -server "$dns_address" -edns shop.fed.example A

if [ "${ONCE:-}" = 1 ]; then
	exit 0
fi

# Enter is read by a process of its own, as a shell that reads cannot look after the others.
exec 3<&0
pressed=
trap 'pressed=1' USR1
while read -r _; do kill -USR1 $$; done <&3 &
keys=$!
cat <<END

All of it is up. In another terminal:

  bin/lookup -server $dns_address _grpc._tcp.orders.fed.example SRV
  dig @127.0.0.1 -p 1053 primary.stock.db.fed.example A     (where dig is installed)
  bin/federationctl why v1.shop.fed.example
  bin/federationctl watch $owner_address --cert $run/consumer.pem --key $run/consumer-key.pem --ca $run/ca.pem

Add a service to $catalog, save, and look it up.
http://localhost:9154/ shows in a browser what CoreDNS knows.
The logs are in $run/owner.log and $run/coredns.log.

Enter stops the owner, and starts it again. Ctrl-C ends it all.
END

while :; do
	all_live
	pause 1
	if [ -n "$pressed" ]; then
		pressed=
		if [ -n "$owner" ]; then
			stop_owner
			echo "The owner is stopped. From five seconds on, answers say that they are stale (look for EDE)."
		else
			start_owner
			echo "The owner is started again."
		fi
	fi
done
