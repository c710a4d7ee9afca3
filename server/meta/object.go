package meta

import (
	"cmp"
	"strings"
)

// Kind is what an object is.
type Kind string

const (
	KindNamespace   Kind = "namespace"
	KindTopic       Kind = "topic"
	KindApp         Kind = "app"
	KindProducer    Kind = "producer" // an app that sends to a topic; its name is TOPIC/APP
	KindConsumer    Kind = "consumer" // a group that consumes a topic; its name is TOPIC/GROUP, where GROUP is an app (and all of its subgroups that have none of their own) or app.subgroup
	KindRequest     Kind = "request"  // for access, until somebody decided
	KindCredential  Kind = "credential"
	KindUser        Kind = "user"
	KindBrokerGroup Kind = "broker-group"
	KindBroker      Kind = "broker" // written by the registry when one registers, lives or does not
	KindDataCenter  Kind = "data-center"
	KindReplication Kind = "replication" // who is master of the broker group of its name: written by the registry only
)

// NamespaceDefault is there from the first version on, and has number 0.
const NamespaceDefault = "default"

// Key names an object. Namespace is empty for kinds that belong to none: namespace, user, credential, broker group, broker, data center, replication.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

func (k Key) String() string {
	if k.Namespace == "" || k.Namespace == NamespaceDefault {
		return string(k.Kind) + " " + k.Name
	}
	return string(k.Kind) + " " + k.Namespace + ":" + k.Name
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(string(k.Kind), string(o.Kind)), strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Version counts the changes of the metadata; each change of one or more objects is one version.
type Version uint64

// Generation says which history versions belong to. Within one, a lower version is old and is refused; an operator starts a new one
// after the database was restored from a copy.
type Generation uint64

// Object is a thing of the metadata as a version has it. Objects of a Snapshot, and their specs, are never changed.
type Object struct {
	Key
	Revision Version // that changed it last
	Created  Version // that created it: with the key, its incarnation
	Born     int64   // when that was, unix nanoseconds; 0: with the database
	Spec     Spec    // nil: it was deleted
}

// Spec is what an object says. The types are those of spec.go, as pointers.
type Spec interface {
	// Kind is the kind of object whose spec it is.
	Kind() Kind
	// Validate says what is wrong with its values alone, as a *wire.CodeError with CodeInvalid that names the field.
	Validate() error
}
