package nodecerts

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// nodeExtra is the field of the user info with the node of the token's pod.
const nodeExtra = "authentication.kubernetes.io/node-name"

// check returns an agent's request for its own node, and the node. The error is the reason
// of a denial, in one line.
func check(csr *certificatesv1.CertificateSigningRequest, account string) (*x509.CertificateRequest, string, error) {
	if csr.Spec.Username != account {
		return nil, "", fmt.Errorf("asked by %q: only %s may", csr.Spec.Username, account)
	}
	names := csr.Spec.Extra[nodeExtra]
	if len(names) != 1 || names[0] == "" {
		return nil, "", errors.New("the token names no node: it has to be bound to the agent's pod")
	}
	node := names[0]
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	if !sets.New(csr.Spec.Usages...).Equal(sets.New(usages...)) {
		return nil, "", fmt.Errorf("usages are %v: they have to be %v", csr.Spec.Usages, usages)
	}
	request, err := parse(csr.Spec.Request)
	if err != nil {
		return nil, "", err
	}
	if request.Subject.String() != "CN="+migration.CommonNamePrefix+node {
		return nil, "", fmt.Errorf("subject is %q: for this token's node it has to be %q", request.Subject.String(), "CN="+migration.CommonNamePrefix+node)
	}
	dns := slices.ContainsFunc(request.DNSNames, func(name string) bool { return name != node })
	if dns || len(request.EmailAddresses)+len(request.IPAddresses)+len(request.URIs) > 0 {
		return nil, "", fmt.Errorf("the request has names beside node %q", node)
	}
	return request, node, nil
}

func parse(text []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("the request is not one PEM block CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("the request cannot be read")
	}
	if request.CheckSignature() != nil {
		return nil, errors.New("the request is not signed with its own key")
	}
	return request, strong(request.PublicKey)
}

func strong(key any) error {
	const rsaBits, ecBits = 2048, 256
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Params().BitSize >= ecBits {
			return nil
		}
	case *rsa.PublicKey:
		if k.N.BitLen() >= rsaBits {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	}
	return errors.New("the key is too weak, or of an unknown kind")
}
