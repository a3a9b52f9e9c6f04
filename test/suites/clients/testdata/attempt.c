/* attempt HOST PORT ATTEMPTS: what a C library makes of a name. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void attempt(const char *host, const char *port)
{
	struct addrinfo hints, *found, *a;
	int code, n = 0, done = 0;

	memset(&hints, 0, sizeof hints);
	hints.ai_socktype = SOCK_STREAM;
	code = getaddrinfo(host, port, &hints, &found);
	if (code) {
		printf("! %s\n", gai_strerror(code));
		return;
	}
	for (a = found; a; a = a->ai_next)
		n++;
	for (a = found; a && !done; a = a->ai_next) {
		char name[64];
		int s = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
		if (s < 0)
			continue;
		if (!connect(s, a->ai_addr, a->ai_addrlen) && !getnameinfo(a->ai_addr, a->ai_addrlen, name, sizeof name, NULL, 0, NI_NUMERICHOST)) {
			printf("%s %d\n", name, n);
			done = 1;
		}
		close(s);
	}
	if (!done)
		printf("! no connection\n");
	freeaddrinfo(found);
}

int main(int argc, char **argv)
{
	int left = argc > 3 ? atoi(argv[3]) : -1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (left--) {
		attempt(argv[1], argv[2]);
		if (left)
			usleep(200000);
	}
	return 0;
}
