package nodecerts

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

const (
	// formerKey of the Secret has the former CAs in PEM, each with the time at which it was
	// replaced as a header.
	formerKey      = "former-ca.crt"
	replacedHeader = "Replaced"
	// formerLife is how long a CA is trusted after its replacement: the certificates that it
	// has signed live no longer.
	formerLife = leafMost
)

// replaced is a former CA, and when another replaced it.
type replaced struct {
	cert *x509.Certificate
	at   time.Time
}

// readFormer returns the former CAs that are still trusted.
func readFormer(secret *corev1.Secret, now time.Time) (all []replaced) {
	for rest := secret.Data[formerKey]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		at, err := time.Parse(time.RFC3339, block.Headers[replacedHeader])
		if err != nil || at.After(now.Add(skew)) || !at.Add(formerLife).After(now) {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && c.IsCA {
			all = append(all, replaced{c, at})
		}
	}
}

// writeFormer puts the former CAs into the Secret's data.
func writeFormer(secret *corev1.Secret, all []replaced) {
	var text bytes.Buffer
	for _, f := range all {
		text.Write(pem.EncodeToMemory(&pem.Block{
			Type: cert.CertificateBlockType, Bytes: f.cert.Raw,
			Headers: map[string]string{replacedHeader: f.at.UTC().Format(time.RFC3339)},
		}))
	}
	delete(secret.Data, formerKey)
	if text.Len() > 0 {
		secret.Data[formerKey] = text.Bytes()
	}
}
