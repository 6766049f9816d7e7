package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
)

// idleWebhook makes the API server ask a webhook about each eviction of the bystander. The
// webhook allows all and does nothing. So the floor has the costs of an answer by any
// webhook.
func (c *crew) idleWebhook() {
	c.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
	}))
	c.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	c.api.KubectlApply(c, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: bench}
webhooks:
  - name: bench.vmgrace.io
    admissionReviewVersions: [v1]
    failurePolicy: Fail
    sideEffects: None
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/eviction], scope: Namespaced}]
    matchConditions: [{name: bystander, expression: object.metadata.name == '`+bystander+`'}]
    clientConfig: {url: "`+server.URL+`/", caBundle: `+base64.StdEncoding.EncodeToString(authority)+`}
`)
}
