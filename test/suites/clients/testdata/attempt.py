"""HOST PORT ATTEMPTS: what Python makes of a name."""
import itertools
import sys
import time
import urllib.request

host, port, attempts = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in itertools.count(1):
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=10) as response:
            print(response.read().decode().strip(), flush=True)
    except OSError as e:
        print("!", e, flush=True)
    if n == attempts:
        break
    time.sleep(0.2)
