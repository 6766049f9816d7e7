package nodecerts

import (
	"errors"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answered reconciles a request once and returns it.
func (s *scene) answered(name string) (*certificatesv1.CertificateSigningRequest, ctrl.Result, error) {
	s.Helper()
	result, err := s.Reconcile(s.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}})
	is := &certificatesv1.CertificateSigningRequest{}
	if getErr := s.api.Get(s.Context(), client.ObjectKey{Name: name}, is); getErr != nil {
		s.Fatal(getErr)
	}
	return is, result, err
}

// counted returns how often a request had this result.
func (s *scene) counted(result string) int {
	s.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetValue() == result {
					return int(m.Counter.GetValue())
				}
			}
		}
	}
	return 0
}

func TestARequestIsApprovedAndSigned(t *testing.T) {
	for name, c := range map[string]struct {
		asked *int32
		want  time.Duration
	}{"a day": {nil, leafMost}, "an hour": {new(int32(3600)), time.Hour}, "a year": {new(int32(365 * 24 * 3600)), leafMost}} {
		request := csr("x")
		request.Spec.ExpirationSeconds = c.asked
		s := given(t, request)
		is, _, err := s.answered("x")
		if err != nil || !has(is, certificatesv1.CertificateApproved) || len(is.Status.Conditions) != 1 || is.Status.Conditions[0].Reason != "OwnNode" {
			t.Fatalf("%s: %v, %+v", name, err, is.Status.Conditions)
		}
		made, err := cert.ParseCertsPEM(is.Status.Certificate)
		if err != nil || len(made) != 1 {
			t.Fatal(err)
		}
		leaf := made[0]
		if err := leaf.CheckSignatureFrom(s.ca().cert); err != nil {
			t.Error(err)
		}
		left := time.Until(leaf.NotAfter)
		if leaf.Subject.CommonName != "vmgrace:node:node-a" || leaf.DNSNames[0] != "node-a" || leaf.IsCA || left > c.want || left < c.want-time.Minute || time.Since(leaf.NotBefore) < skew {
			t.Errorf("%s: %+v, left %v", name, leaf.Subject, left)
		}
		if s.counted("signed") != 1 || s.counted("denied") != 0 {
			t.Errorf("%s: counted %d and %d", name, s.counted("signed"), s.counted("denied"))
		}
	}
}

func TestARequestThatIsNotForTheOwnNodeIsDenied(t *testing.T) {
	bad := func() *certificatesv1.CertificateSigningRequest {
		c := csr("x")
		c.Spec.Username = "system:admin"
		return c
	}
	approved := bad()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	for name, c := range map[string]struct {
		csr  *certificatesv1.CertificateSigningRequest
		want certificatesv1.RequestConditionType
	}{"new": {bad(), certificatesv1.CertificateDenied}, "approved by others": {approved, certificatesv1.CertificateFailed}} {
		s := given(t, c.csr)
		is, _, err := s.answered("x")
		if err != nil || !has(is, c.want) || len(is.Status.Certificate) > 0 || s.counted("denied") != 1 || s.counted("signed") != 0 {
			t.Errorf("%s: %v, %+v", name, err, is.Status)
		}
	}
}

func TestWhatIsAnsweredOrOthersIsLeftAlone(t *testing.T) {
	with := func(change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		c := csr("x")
		change(c)
		return c
	}
	condition := func(kind certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
		return with(func(c *certificatesv1.CertificateSigningRequest) {
			c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: corev1.ConditionTrue}}
		})
	}
	for name, c := range map[string]*certificatesv1.CertificateSigningRequest{
		"another signer's": with(func(c *certificatesv1.CertificateSigningRequest) { c.Spec.SignerName = "kubernetes.io/kubelet-serving" }),
		"signed":           with(func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("x") }),
		"denied":           condition(certificatesv1.CertificateDenied),
		"failed":           condition(certificatesv1.CertificateFailed),
	} {
		s := given(t, c)
		if _, _, err := s.answered("x"); err != nil || s.writes > 0 {
			t.Errorf("%s: %v, %d writes", name, err, s.writes)
		}
	}
	s := given(t)
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "gone"}}); err != nil || s.writes > 0 {
		t.Errorf("gone: %v, %d writes", err, s.writes)
	}
	s.fails["get request"] = errors.New("away")
	if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "gone"}}); err == nil {
		t.Error("an error is taken for an absence")
	}
}

// A request that we or others approved before is only signed.
func TestAnApprovedRequestIsOnlySigned(t *testing.T) {
	request := csr("x")
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	s := given(t, request)
	if is, _, err := s.answered("x"); err != nil || len(is.Status.Certificate) == 0 || len(is.Status.Conditions) != 1 {
		t.Errorf("%v, %+v", err, is.Status)
	}
}

// Another replica's or agent's write is no error; the request is answered again.
func TestAWriteThatFailsIsTriedAgain(t *testing.T) {
	resource := schema.GroupResource{Resource: "certificatesigningrequests"}
	refused := csr("x")
	refused.Spec.Username = "system:admin"
	approved := refused.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	for fault, request := range map[string]*certificatesv1.CertificateSigningRequest{
		"approval request": csr("x"), "status request": csr("x"), "create secret": csr("x"),
	} {
		for name, c := range map[string]struct {
			err   error
			quiet bool
		}{
			"conflict": {apierrors.NewConflict(resource, "x", nil), true},
			"gone":     {apierrors.NewNotFound(resource, "x"), true},
			"there":    {apierrors.NewAlreadyExists(resource, "x"), true},
			"away":     {errors.New("away"), false},
		} {
			s := given(t, request.DeepCopy())
			s.fails[fault] = c.err
			is, result, err := s.answered("x")
			if (err == nil) != c.quiet || (result.RequeueAfter > 0) != c.quiet || len(is.Status.Certificate) > 0 || s.counted("signed") > 0 {
				t.Errorf("%s %s: %v, %v, %+v", fault, name, result, err, is.Status)
			}
			s.fails = nil
			if is, _, err = s.answered("x"); err != nil || len(is.Status.Certificate) == 0 {
				t.Errorf("%s %s, again: %v, %+v", fault, name, err, is.Status)
			}
		}
	}
	for fault, request := range map[string]*certificatesv1.CertificateSigningRequest{"approval request": refused, "status request": approved} {
		s := given(t, request)
		s.fails[fault] = errors.New("away")
		if is, _, err := s.answered("x"); err == nil || s.counted("denied") > 0 || has(is, certificatesv1.CertificateDenied) || has(is, certificatesv1.CertificateFailed) {
			t.Errorf("a denial without %s: %v, %+v", fault, err, is.Status)
		}
	}
}
