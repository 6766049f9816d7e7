// Package nodecerts issues the certificates by which agents authenticate each other in
// migrations. It has their certificate authority, and approves and signs an agent's request
// for its own node, which is the node in its token. It denies all other requests to its
// signer.
package nodecerts
