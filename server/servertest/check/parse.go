package check

import (
	"bytes"
	"slices"
)

// A million operations are some hundred megabytes of lines, and reading them would take longer than judging them. So the lines that writers
// write are taken apart here, and everything else (escapes, ranges, usages, white space, mistakes) is left to encoding/json.

// line takes apart an object of plain strings and whole numbers. known keeps those strings that come again and again. false: it is
// something else, and e is of no use.
func (e *Event) line(b []byte, known map[string]string) bool {
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return false
	}
	for b = b[1:]; ; b = b[1:] {
		if b[0] != '"' {
			return false
		}
		end := bytes.IndexByte(b[1:], '"')
		if end < 0 || len(b) < end+4 || b[end+2] != ':' {
			return false
		}
		name := b[1 : end+1]
		b = b[end+3:]
		if b[0] == '"' {
			if end = bytes.IndexByte(b[1:], '"'); end < 0 {
				return false
			}
			text := b[1 : end+1]
			for _, ch := range text {
				if ch < ' ' || ch == '\\' || ch >= 0x7f {
					return false
				}
			}
			if !e.setText(string(name), text, known) {
				return false
			}
			b = b[end+2:]
		} else {
			negative := b[0] == '-'
			if negative {
				b = b[1:]
			}
			n, digits := uint64(0), 0
			for digits < len(b) && b[digits] >= '0' && b[digits] <= '9' {
				n = n*10 + uint64(b[digits]-'0')
				digits++
			}
			if digits == 0 || digits > 19 || digits > 1 && b[0] == '0' || !e.setNumber(string(name), n, negative) {
				return false
			}
			b = b[digits:]
		}
		switch {
		case len(b) == 1 && b[0] == '}':
			return true
		case len(b) < 3 || b[0] != ',':
			return false
		}
	}
}

// knownMost bounds the strings that are kept.
const knownMost = 1 << 14

func (e *Event) setText(name string, b []byte, known map[string]string) bool {
	var at *string
	switch name {
	case "id":
		e.ID = string(b)
		return true
	case "hash":
		e.Hash = string(b)
		return true
	case "op":
		at = (*string)(&e.Op)
	case "result":
		at = (*string)(&e.Result)
	case "proc":
		at = &e.Proc
	case "topic":
		at = &e.Topic
	case "group":
		at = &e.Group
	case "key":
		at = &e.Key
	case "brokerGroup":
		at = &e.BrokerGroup
	case "reason":
		at = &e.Reason
	default:
		return false
	}
	s, ok := known[string(b)]
	if !ok {
		if s = string(b); len(known) < knownMost {
			known[s] = s
		}
	}
	*at = s
	return true
}

// signedNames are the fields that may be negative, and are not larger than an int64.
var signedNames = []string{"call", "return", "granted", "deadline", "unknown"}

func (e *Event) setNumber(name string, n uint64, negative bool) bool {
	signed := int64(n)
	if signed < 0 && slices.Contains(signedNames, name) {
		return false
	}
	if negative {
		signed = -signed
	}
	switch name {
	case "call":
		e.Call = signed
		return true
	case "return":
		e.Return = signed
		return true
	case "granted":
		e.Granted = signed
		return true
	case "deadline":
		e.Deadline = signed
		return true
	case "unknown":
		e.Unknown = int(signed)
		return true
	}
	if negative {
		return false
	}
	switch name {
	case "index":
		e.Index = n
	case "to":
		e.To = n
	case "seq":
		e.Seq = n
	case "epoch":
		e.Epoch = n
	case "lease":
		e.Lease = n
	case "pending":
		e.Pending = n
	case "version":
		e.Version = n
	case "expect":
		e.Expect = n
	case "partition":
		e.Partition = uint16(n)
		return n < 1<<16
	case "member":
		e.Member = uint32(n)
		return n < 1<<32
	default:
		return false
	}
	return true
}
