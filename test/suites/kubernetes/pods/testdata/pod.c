/* The program of a pod. It prints, for each name, a line with the addresses that
 * getaddrinfo returns, or its error. */
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
	char text[NI_MAXHOST];
	int i, err;

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
