package realserver

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes a kubeconfig for an API server, with a token.
func (s *APIServer) writeKubeconfig(path, token string) error {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: s.URL, CertificateAuthority: s.certificate}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}

// WriteKubeconfig writes a kubeconfig for a service account of a namespace, which may do so
// for a lifetime. It is ten minutes at least, as the API server has it.
func (c *Cluster) WriteKubeconfig(ctx context.Context, path, namespace, account string, lifetime time.Duration) error {
	seconds := int64(lifetime.Seconds())
	reply, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return c.API.writeKubeconfig(path, reply.Status.Token)
}
