# HOST PORT ATTEMPTS: what curl makes of a name.
left=$3
while [ "$left" -ne 0 ]; do
	curl -sS --max-time 10 "http://$1:$2/" 2>&1 | sed '/^curl:/s/^/! /'
	left=$((left - 1))
	[ "$left" -eq 0 ] || sleep 0.2
done
