/* The program of a pod. It prints, for each name, a line with the addresses that
 * getaddrinfo returns, or its error; without a name it waits for SIGTERM. */
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void end(int signal) {
	(void)signal;
	_exit(0);
}

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
	char text[NI_MAXHOST];
	int i, err;

	if (argc == 1) {
		signal(SIGTERM, end);
		for (;;)
			pause();
	}
	for (i = 1; i < argc; i++) {
		printf("%s", argv[i]);
		err = getaddrinfo(argv[i], NULL, &hints, &list);
		if (err == EAI_NONAME)
			printf(" none");
		else if (err)
			printf(" error: %s", gai_strerror(err));
		for (a = err ? NULL : list; a; a = a->ai_next)
			if (!getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST))
				printf(" %s", text);
		printf("\n");
	}
	return 0;
}
