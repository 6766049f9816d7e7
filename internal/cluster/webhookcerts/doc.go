// Package webhookcerts makes, renews and serves the certificate of the webhooks, and writes the
// caBundle by which the API server verifies it.
//
// Both are in one Secret that all replicas watch. Any replica renews it. The Secret's
// resourceVersion lets one of concurrent writes succeed. The API server can verify each
// certificate at any time: a CA is in the caBundle one generation before it signs, and stays
// there for one generation after that.
//
// The Secret also has the key at the end of the path of the webhook that marks VMs. It
// authenticates the API server: the certificate only authenticates the webhook.
package webhookcerts
