// Package nodecerts gives the agents the certificates by which they know each
// other in migrations: it keeps their certificate authority, and approves and
// signs what an agent asks for its own node, by the node in its token. All else
// that is asked of its signer is denied.
package nodecerts
