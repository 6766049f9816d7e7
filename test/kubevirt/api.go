package kubevirt

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	namespace = "kubevirt"
	service   = "virt-api." + namespace + ".svc"
	accounts  = "system:serviceaccount:" + namespace + ":kubevirt-"
	biggest   = 8 << 20 // bytes of a review
)

// api is virt-api: the webhooks of evictions and of VMIs.
type api struct{ *cluster }

// RunAPI is virt-api until ctx ends.
func RunAPI(ctx context.Context, log *slog.Logger) error {
	c, err := connect(log)
	if err != nil {
		return err
	}
	a := &api{c}
	authority, key, err := cert.GenerateSelfSignedCertKey(service, nil, []string{service})
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(authority, key)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	if err := a.tell(ctx, authority); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/launcher-eviction-validate", answer(log, a.evict))
	mux.HandleFunc("/virtualmachineinstances-mutate", answer(log, a.mutate))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{
		Addr: ":8443", Handler: mux, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("webhooks: %w", err)
	}
	return nil
}

// tell writes the certificate into the webhooks' configurations, as virt-operator does.
func (a *api) tell(ctx context.Context, authority []byte) error {
	patch := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil,
		`[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":%q}]`, base64.StdEncoding.EncodeToString(authority)))
	validating, mutating := &admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}
	validating.Name, mutating.Name = "virt-api-validator", "virt-api-mutator"
	return errors.Join(a.Patch(ctx, validating, patch), a.Patch(ctx, mutating, patch))
}

// answer makes a handler of what decides on a review.
func answer(log *slog.Logger, decide func(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(io.LimitReader(r.Body, biggest)).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, fmt.Sprintf("no review: %v", err), http.StatusBadRequest)
			return
		}
		review.Response = decide(r.Context(), review.Request)
		review.Response.UID = review.Request.UID
		if err := json.NewEncoder(w).Encode(review); err != nil {
			log.Warn("answer", "err", err)
		}
	}
}

func allowed() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

func denied(format string, args ...any) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: fmt.Sprintf(format, args...), Code: http.StatusTooManyRequests}}
}

// evict answers the eviction of a pod. A VMI that is to be moved is marked.
func (a *api) evict(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	pod := &corev1.Pod{}
	if err := a.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Name}, pod); err != nil {
		return allowed()
	}
	if pod.Labels["kubevirt.io"] != "virt-launcher" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return allowed()
	}
	v := &vmi{object{&unstructured.Unstructured{}}}
	v.SetAPIVersion("kubevirt.io/v1")
	v.SetKind("VirtualMachineInstance")
	if err := a.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: pod.Annotations["kubevirt.io/domain"]}, v.Unstructured); err != nil {
		return denied("kubevirt failed getting the vmi: %v", err)
	}
	switch strategy := v.text("spec", "evictionStrategy"); {
	case strategy == "LiveMigrate" && !v.is("LiveMigratable"):
		return denied("VMI %s is configured with an eviction strategy but is not live-migratable", v.GetName())
	case strategy == "LiveMigrate" || strategy == "External" || strategy == "LiveMigrateIfPossible" && v.is("LiveMigratable"):
	default:
		return allowed()
	}
	evacuation := fmt.Sprintf("Eviction triggered evacuation of VMI \"%s/%s\"", v.GetNamespace(), v.GetName())
	switch {
	case v.marked():
		return denied("Evacuation in progress: %s", evacuation)
	case v.node() != pod.Spec.NodeName:
		return denied("Eviction request for target Pod")
	}
	var options []client.PatchOption
	if r.DryRun != nil && *r.DryRun {
		options = append(options, client.DryRunAll)
	}
	mark := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"add","path":"/status/evacuationNodeName","value":%q}]`, pod.Spec.NodeName))
	if err := a.Patch(ctx, v.Unstructured, mark, options...); err != nil && !apierrors.IsNotFound(err) {
		return denied("kubevirt failed marking the vmi for eviction: %v", err)
	}
	a.log.Info("marked", "vmi", v.GetName(), "dryRun", len(options) > 0)
	return denied("%s", evacuation)
}

// mutate completes a new VMI, and undoes what others than KubeVirt write into a VMI's status.
func (a *api) mutate(_ context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	var is, was map[string]any
	if err := json.Unmarshal(r.Object.Raw, &is); err != nil {
		return denied("%v", err)
	}
	var patch []map[string]any
	switch r.Operation {
	case admissionv1.Create:
		status, _ := is["status"].(map[string]any) // absent is empty
		if status == nil {
			status = map[string]any{}
		}
		status["phase"] = "Pending"
		for _, later := range []string{"nodeName", "evacuationNodeName", "migrationState"} {
			delete(status, later)
		}
		patch = append(patch, map[string]any{"op": "add", "path": "/status", "value": status},
			map[string]any{"op": "add", "path": "/metadata/finalizers", "value": []string{finalizer}})
	case admissionv1.Update:
		if err := json.Unmarshal(r.OldObject.Raw, &was); err != nil {
			return denied("%v", err)
		}
		if !strings.HasPrefix(r.UserInfo.Username, accounts) && !reflect.DeepEqual(is["status"], was["status"]) {
			patch = append(patch, map[string]any{"op": "add", "path": "/status", "value": was["status"]})
		}
	case admissionv1.Delete, admissionv1.Connect: // nobody asks
	}
	if patch == nil {
		return allowed()
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return denied("%v", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: text, PatchType: &kind}
}
