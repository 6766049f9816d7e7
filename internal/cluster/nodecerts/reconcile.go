package nodecerts

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// Config is what the signer needs. Live reads from the API server, not the cache.
type Config struct {
	Log       *slog.Logger
	Live      client.Reader
	Namespace string
	Meter     *metrics.Meter
}

// checkInterval is how often the CA and its ConfigMap are checked without a request.
const checkInterval = time.Minute

type signer struct {
	Config
	client.Client // reads the cache
}

// Add adds the signer to the manager. It runs in the elected replica.
func Add(mgr ctrl.Manager, cfg Config) error {
	s := &signer{cfg, mgr.GetClient()}
	run := manager.RunnableFunc(func(ctx context.Context) error { wait.UntilWithContext(ctx, s.ensureCA, checkInterval); return nil })
	if err := mgr.Add(run); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("node-certificates").For(&certificatesv1.CertificateSigningRequest{}).Complete(s)
}

// ensureCA makes the CA before the first request, and corrects the ConfigMap.
func (s *signer) ensureCA(ctx context.Context) {
	if _, err := s.getCA(ctx); err != nil && ctx.Err() == nil {
		s.Log.Warn("cannot check or make the CA of the agents' certificates; retrying", "error", err)
	}
}

// Reconcile approves and signs, or denies, one request.
func (s *signer) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := s.Get(ctx, req.NamespacedName, csr); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if csr.Spec.SignerName != migration.SignerName || len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed) {
		return reconcile.Result{}, nil
	}
	err := s.answer(ctx, csr)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return reconcile.Result{}, err
}

func (s *signer) answer(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	request, node, refused := check(csr, "system:serviceaccount:"+s.Namespace+":node-agent")
	if refused != nil {
		// Deny it even if another approver has approved it.
		s.Log.Warn("certificate denied", "request", csr.Name, "why", refused)
		if err := s.decide(ctx, csr, certificatesv1.CertificateDenied, "Refused", refused.Error()); err != nil {
			return err
		}
		s.Meter.NodeCertificate("denied")
		return nil
	}
	if !has(csr, certificatesv1.CertificateApproved) {
		if err := s.decide(ctx, csr, certificatesv1.CertificateApproved, "OwnNode", "an agent asks for its own node"); err != nil {
			return err
		}
	}
	ca, err := s.getCA(ctx)
	if err != nil {
		return err
	}
	made, err := sign(ca, request, node, csr.Spec.ExpirationSeconds)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", csr.Name, err)
	}
	csr.Status.Certificate = made
	if err := s.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("certificate %s: %w", csr.Name, err)
	}
	s.Log.Info("certificate signed", "request", csr.Name, "node", node)
	s.Meter.NodeCertificate("signed")
	return nil
}

func (s *signer) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string) error {
	if has(csr, certificatesv1.CertificateApproved) && kind == certificatesv1.CertificateDenied {
		kind = certificatesv1.CertificateFailed // the API server refuses to deny an approved request
	}
	now := metav1.Now()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	})
	var err error
	if kind == certificatesv1.CertificateFailed {
		err = s.Status().Update(ctx, csr)
	} else {
		err = s.SubResource("approval").Update(ctx, csr)
	}
	if err != nil {
		return fmt.Errorf("certificate %s: %w", csr.Name, err)
	}
	return nil
}

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}
