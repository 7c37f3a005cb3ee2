// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// A pb.EpochProof proves that an epoch supersedes an earlier one. Either a server of
// the former primary signs its consent, or an operator and a server of the new primary
// sign the take-over. Therefore one stolen certificate proves nothing about another
// datacenter. A proof travels with the epoch, and any server may present it. A
// consent replaces only the epoch of the signer's datacenter, so a server that was
// away needs the consents since then. A take-over replaces any lower epoch.

const (
	// maxProofs limits the proofs that a primary presents.
	maxProofs = 64
	// maxProofBytes limits the size of one proof.
	maxProofBytes = 16 << 10
	// maxSignerCerts limits the certificates of one signature. With more, a peer
	// could make a verification long.
	maxSignerCerts = 4
	// takeOverStep divides the number of the epoch of each take-over. Planned moves
	// increase the number by 1. The next multiple is therefore higher than the numbers
	// of planned moves of which the operator does not know.
	takeOverStep = 100
)

// SignEpoch returns a proof of e with the signature of id. former is the former
// primary if id is one of its servers, and "" if id is an operator of the datacenter
// of e. A server of that datacenter adds its signature in TakeOver.
func SignEpoch(id *tlsutil.Identity, e Epoch, former string) (*pb.EpochProof, error) {
	proof := &pb.EpochProof{Epoch: e.proto(), Former: former}
	return proof, addSignature(id, proof)
}

// addSignature adds the signature of id to a proof.
func addSignature(id *tlsutil.Identity, proof *pb.EpochProof) (err error) {
	s := &pb.EpochSignature{SignedAt: timestamppb.New(time.Now().Truncate(time.Second)), Certificates: id.Chain()}
	s.Signature, err = id.Sign(signedText(proof, s))
	proof.Signatures = append(proof.Signatures, s)
	return err
}

// signedText returns the text that the signer of a proof signs.
func signedText(proof *pb.EpochProof, s *pb.EpochSignature) []byte {
	return fmt.Appendf(nil, "wanfed epoch\nepoch %d:%s\nformer %s\nsigned at %d\n", proof.GetEpoch().GetNumber(),
		proof.GetEpoch().GetDatacenter(), proof.GetFormer(), s.GetSignedAt().GetSeconds())
}

// verifyProof verifies a proof: its signatures are those that are required.
func (p *PrimaryManager) verifyProof(proof *pb.EpochProof) error {
	e := epochOf(proof.GetEpoch())
	if proto.Size(proof) > maxProofBytes || tlsutil.CheckLabel(e.Datacenter) != nil || e.Number <= firstEpoch {
		return errors.New("not a proof of an epoch")
	}
	if former := proof.GetFormer(); former != "" {
		return p.verifySignature(proof, tlsutil.RoleServer, former)
	}
	return cmp.Or(p.verifySignature(proof, tlsutil.RoleOperator, e.Datacenter),
		p.verifySignature(proof, tlsutil.RoleServer, e.Datacenter))
}

// verifySignature returns nil if one of the first two signatures of a proof is by
// role of dc.
func (p *PrimaryManager) verifySignature(proof *pb.EpochProof, role tlsutil.Role, dc string) error {
	err := fmt.Errorf("the signature of the role %s of %s is missing", role, dc)
	for _, s := range proof.GetSignatures()[:min(2, len(proof.GetSignatures()))] {
		signer, signErr := p.signer(proof, s)
		switch {
		case signErr != nil:
			err = fmt.Errorf("%w: %w", err, signErr)
		case signer.Role == role && signer.DC == dc:
			return nil
		default:
			err = fmt.Errorf("%w: %v has signed", err, signer)
		}
	}
	return err
}

// signer verifies a signature, and returns the peer that has made it. The certificate
// is verified for the time of the signature, because a proof is needed for longer. A
// signer that is revoked proves nothing.
func (p *PrimaryManager) signer(proof *pb.EpochProof, s *pb.EpochSignature) (peer tlsutil.Peer, err error) {
	if n := len(s.GetCertificates()); n == 0 || n > maxSignerCerts {
		return peer, fmt.Errorf("%d certificates of the signer, not 1 to %d", n, maxSignerCerts)
	}
	var certs []*x509.Certificate
	for _, der := range s.GetCertificates() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return peer, fmt.Errorf("certificate of the signer: %w", err)
		}
		certs = append(certs, c)
	}
	id := p.cfg.Identity
	if err := id.VerifyPeerAt(certs, s.GetSignedAt().AsTime()); err != nil {
		return peer, err
	}
	if err := tlsutil.VerifyText(certs[0], signedText(proof, s), s.GetSignature()); err != nil {
		return peer, err
	}
	return tlsutil.PeerFromCert(certs[0], id.Domain())
}

// learnProven records the epochs of proofs that a server of another datacenter
// presents, and that supersede the known one.
func (p *PrimaryManager) learnProven(proofs []*pb.EpochProof) {
	for _, proof := range ordered(proofs) {
		e, known := epochOf(proof.GetEpoch()), p.KnownEpoch()
		former := cmp.Or(proof.GetFormer(), known.Datacenter)
		if e.Datacenter == p.cfg.DC || former != p.lastPrimary() || !e.Supersedes(known) {
			continue
		}
		if err := p.verifyProof(proof); err != nil {
			p.cfg.Logger.Debug("refused the proof of an epoch", "epoch", e.String(), "err", err)
			continue
		}
		p.learn(e, proof)
	}
}

// lastPrimary returns the last known primary. Only its servers may consent to
// another one.
func (p *PrimaryManager) lastPrimary() string {
	return cmp.Or(p.KnownEpoch().Datacenter, p.PrimaryDC())
}

// ordered returns at most maxProofs of the proofs, those with the highest epochs, in
// ascending order.
func ordered(proofs []*pb.EpochProof) []*pb.EpochProof {
	proofs = slices.SortedFunc(slices.Values(proofs), func(a, b *pb.EpochProof) int {
		return cmp.Or(cmp.Compare(a.GetEpoch().GetNumber(), b.GetEpoch().GetNumber()),
			cmp.Compare(a.GetEpoch().GetDatacenter(), b.GetEpoch().GetDatacenter()))
	})
	return proofs[max(0, len(proofs)-maxProofs):]
}

// addProof returns the verified proofs with one more. Of the proofs of operators,
// and of those with the same former primary, only the last one is needed: any server
// that accepts an earlier one also accepts the last one, or a later consent.
func addProof(proofs []*pb.EpochProof, proof *pb.EpochProof) []*pb.EpochProof {
	if proof == nil {
		return proofs
	}
	next := make([]*pb.EpochProof, 0, len(proofs)+1)
	for _, other := range proofs {
		switch {
		case other.GetFormer() != proof.GetFormer():
			next = append(next, other)
		case !epochOf(proof.GetEpoch()).Supersedes(epochOf(other.GetEpoch())):
			return proofs
		}
	}
	return ordered(append(next, proof))
}

// verifiedProofs adds those of received, from the primary that this datacenter
// follows, to stored. A secondary needs them when it becomes the primary.
func (p *PrimaryManager) verifiedProofs(stored, received []*pb.EpochProof) []*pb.EpochProof {
	for _, proof := range ordered(received) {
		known := slices.ContainsFunc(stored, func(s *pb.EpochProof) bool { return proto.Equal(s, proof) })
		if !known && !epochOf(proof.GetEpoch()).Supersedes(p.KnownEpoch()) && p.verifyProof(proof) == nil {
			stored = addProof(stored, proof)
		}
	}
	return stored
}

// nextTakeOver returns the epoch that a take-over by this datacenter begins. A former
// primary that has withdrawn its consent may be in an epoch that is higher by 2.
func (p *PrimaryManager) nextTakeOver() Epoch {
	n := max(p.KnownEpoch().Number, p.stored().GetWithdrawn()+2)
	return Epoch{(n/takeOverStep + 1) * takeOverStep, p.cfg.DC}
}
