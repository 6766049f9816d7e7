package webhookcerts

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Add adds the controller of the certificate to the manager. It runs in every replica.
func (k *Keeper) Add(mgr ctrl.Manager, m Meter) error {
	r := &reconciler{k, mgr.GetClient(), m}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return k.request() })
	return ctrl.NewControllerManagedBy(mgr).Named("certificate").
		For(&corev1.Secret{}).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, all).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, all).
		WatchesRawSource(initial(k.request()[0])).
		WithOptions(controllerOptions()).
		Complete(r)
}

// controllerOptions returns options with a short backoff. Each attempt at a first
// certificate makes RSA keys, but without a certificate the webhooks cannot answer.
func controllerOptions() controller.Options {
	return controller.Options{
		NeedLeaderElection: new(false),
		RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 10*time.Second),
	}
}

// initial enqueues the Secret at the start: without a Secret there is no watch event.
func initial(r reconcile.Request) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(r)
		return nil
	})
}

func (k *Keeper) request() []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: k.cfg.Namespace, Name: Name}}}
}

type reconciler struct {
	keeper *Keeper
	client client.Client
	meter  Meter
}

// Reconcile serves the Secret's certificate, renews it in time, and writes the caBundle. It
// is idempotent, and safe in several replicas at once.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	secret := &corev1.Secret{}
	err := r.client.Get(ctx, request.NamespacedName, secret)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	now := time.Now()
	if due := r.keeper.due(secret); !now.Before(due) {
		return r.write(ctx, secret, now)
	}
	if err := r.keeper.serve(secret, r.meter); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.updateWebhooks(ctx, secret.Data[bundleKey], string(secret.Data[pathKey])); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: max(time.Second, time.Until(r.keeper.due(secret)))}, nil
}

// write creates or renews the Secret. A conflict with another replica is no error: the
// watch shows the result.
func (r *reconciler) write(ctx context.Context, secret *corev1.Secret, now time.Time) (reconcile.Result, error) {
	secret = secret.DeepCopy()
	if err := r.keeper.renew(secret, now); err != nil {
		return reconcile.Result{}, err
	}
	var err error
	if secret.ResourceVersion == "" { // there is none
		secret.ObjectMeta = metav1.ObjectMeta{
			Namespace: r.keeper.cfg.Namespace, Name: Name,
			Labels: map[string]string{"app.kubernetes.io/name": "cluster-controller", "app.kubernetes.io/part-of": "vmgrace"},
		}
		err = r.client.Create(ctx, secret)
	} else {
		err = r.client.Update(ctx, secret)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("secret %s/%s: %w", r.keeper.cfg.Namespace, Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("the webhooks' certificate is renewed", "validity", r.keeper.cfg.Validity.String())
	return reconcile.Result{RequeueAfter: time.Second}, nil
}

// updateWebhooks writes caBundle and key to the webhook configurations.
func (r *reconciler) updateWebhooks(ctx context.Context, bundle []byte, key string) error {
	name := client.ObjectKey{Name: Name}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := r.client.Get(ctx, name, validating); client.IgnoreNotFound(err) != nil {
		return err
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := r.client.Get(ctx, name, mutating); client.IgnoreNotFound(err) != nil {
		return err
	}
	newV, newM := validating.DeepCopy(), mutating.DeepCopy()
	for i := range newV.Webhooks {
		c := &newV.Webhooks[i].ClientConfig
		c.CABundle = bundle
		addKey(c, r.keeper.cfg.Guarded, key)
	}
	for i := range newM.Webhooks {
		newM.Webhooks[i].ClientConfig.CABundle = bundle
	}
	if err := r.patch(ctx, validating, newV); err != nil {
		return err
	}
	return r.patch(ctx, mutating, newM)
}

// addKey appends the key to the path, or replaces it. Applying the manifest again removes
// it.
func addKey(c *admissionregistrationv1.WebhookClientConfig, path, key string) {
	behind := func(is string) *string {
		before, _, _ := strings.Cut(is, path)
		return new(before + path + "/" + key)
	}
	switch {
	case c.Service != nil:
		path := ""
		if c.Service.Path != nil {
			path = *c.Service.Path
		}
		c.Service.Path = behind(path)
	case c.URL != nil:
		c.URL = behind(*c.URL)
	}
}

func (r *reconciler) patch(ctx context.Context, is, to client.Object) error {
	if equality.Semantic.DeepEqual(is, to) {
		return nil
	}
	if err := r.client.Patch(ctx, to, client.MergeFromWithOptions(is, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("caBundle and path of %s: %w", Name, err)
	}
	return nil
}
