package wire

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// watch begins a request that waits for changes of metadata, as Fetch does for messages: it takes no goroutine, and is
// answered when run calls done. r belongs to run.
func watch[Q any, R proto.Message, P interface {
	*Q
	proto.Message
}](s *Session, c *call, f Frame, check func(P) error, run func(context.Context, P, func(R, error))) error {
	r := P(new(Q))
	if err := proto.Unmarshal(f.Header, r); err != nil {
		return errHeader
	}
	if err := check(r); err != nil {
		return err
	}
	s.mu.Lock()
	if s.mu.watches == watchesMax {
		s.mu.Unlock()
		return Errorf(CodeBusy, "%d watches wait already", watchesMax)
	}
	s.mu.watches++
	c.watch = true
	s.mu.Unlock()
	run(s.ctx, r, func(m R, err error) {
		if !c.claim() {
			return
		}
		if err != nil {
			c.fail(err, false)
			return
		}
		s.replyMessage(c.request, c.command, m)
		c.end(false) // done may be called once more by mistake, and c be another request then
	})
	return nil
}

func (s *Session) whoAmI() *WhoAmIResponse {
	p := s.peer.Load()
	return &WhoAmIResponse{Identity: s.h.identity(p.Principal), Addr: p.Addr, Node: s.h.o.Broker, Roles: s.h.o.Roles}
}

// checkText judges a text that is kept or shown.
func checkText(what, s string, bytesMax int) error {
	if len(s) > bytesMax {
		return Errorf(CodeInvalid, "%s has %d bytes, at most %d are allowed", what, len(s), bytesMax)
	}
	return nil
}

// checkTexts judges several; the names and the texts alternate.
func checkTexts(bytesMax int, namesAndTexts ...string) error {
	for i := 0; i < len(namesAndTexts); i += 2 {
		if err := checkText(namesAndTexts[i], namesAndTexts[i+1], bytesMax); err != nil {
			return err
		}
	}
	return nil
}

func checkWatchRoutes(r *WatchRoutesRequest) error {
	if len(r.Topics) > WatchedTopicsMax {
		return Errorf(CodeInvalid, "%d topics are watched by one request, at most %d are allowed", len(r.Topics), WatchedTopicsMax)
	}
	for _, t := range r.Topics {
		if err := CheckTopic(t.GetTopic()); err != nil {
			return err
		}
		if t.Group != "" {
			if err := CheckGroup(t.Group); err != nil {
				return err
			}
		}
	}
	r.WaitMs = min(r.WaitMs, WatchWaitMsMax)
	return nil
}

func checkWatchObjects(r *WatchObjectsRequest) error {
	r.WaitMs = min(r.WaitMs, WatchWaitMsMax)
	return nil
}

func checkHeartbeat(r *HeartbeatRequest) error {
	if err := checkName("node", r.Node, true); err != nil {
		return err
	}
	if r.BrokerGroup != "" {
		if err := checkName("broker group", r.BrokerGroup, true); err != nil {
			return err
		}
	}
	if err := checkTexts(NameBytesMax, "boot", r.Boot, "data center", r.DataCenter, "version", r.Version, "state", r.State); err != nil {
		return err
	}
	for _, l := range []struct {
		what  string
		texts []string
	}{{"roles", r.Roles}, {"addresses", r.Addresses}, {"labels", r.Labels}} {
		if len(l.texts) > heartbeatTextsMax {
			return Errorf(CodeInvalid, "%d %s, at most %d are allowed", len(l.texts), l.what, heartbeatTextsMax)
		}
		for _, s := range l.texts {
			if err := checkText(l.what, s, 2*NameBytesMax+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkListObjects(r *ListObjectsRequest) error {
	r.Limit = min(r.Limit, pageMax)
	if err := checkText("after", r.After, 4*NameBytesMax); err != nil {
		return err
	}
	return checkTexts(ObjectNameBytesMax, "kind", r.Kind, "namespace", r.Namespace, "prefix", r.Prefix)
}

func checkListAudit(r *ListAuditRequest) error {
	r.Limit = min(r.Limit, pageMax)
	return checkTexts(ObjectNameBytesMax, "kind", r.Kind, "namespace", r.Namespace, "name", r.Name, "who", r.Who)
}

func checkApplyObjects(r *ApplyObjectsRequest) error {
	if len(r.Writes) > ObjectWritesMax {
		return Errorf(CodeInvalid, "%d writes, at most %d are allowed", len(r.Writes), ObjectWritesMax)
	}
	for i, w := range r.Writes {
		o := w.GetObject()
		if o == nil {
			return Errorf(CodeInvalid, "write %d has no object", i)
		}
		if o.Kind == "" || o.Name == "" {
			return Errorf(CodeInvalid, "write %d: an object has a kind and a name", i)
		}
		if err := checkTexts(ObjectNameBytesMax, "kind", o.Kind, "namespace", o.Namespace, "name", o.Name); err != nil {
			return err
		}
		if len(o.Spec) > SpecBytesMax {
			return Errorf(CodeInvalid, "the spec of %s %q has %d bytes, at most %d are allowed", o.Kind, o.Name, len(o.Spec), SpecBytesMax)
		}
	}
	return checkText("reason", r.Reason, ReasonBytesMax)
}

func checkCreateCredential(r *CreateCredentialRequest) error {
	switch r.OwnerKind {
	case PrincipalApp.String(), PrincipalUser.String(), PrincipalNode.String():
	default:
		return Errorf(CodeInvalid, "owner kind %q is none of app, user and node", r.OwnerKind)
	}
	if err := CheckApp(r.Owner); err != nil {
		return Errorf(CodeInvalid, "owner: %s", err.(*CodeError).Message)
	}
	if r.ExpiresNs < 0 {
		return Errorf(CodeInvalid, "expires at %d", r.ExpiresNs)
	}
	return checkTexts(ReasonBytesMax, "namespace", r.Namespace, "reason", r.Reason)
}
